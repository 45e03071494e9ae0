"""``tenantq pipeline schedule``: print examples that run the pipeline every hour and write reports every day."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

import click

from tenantq.cli.commands.pipeline import options
from tenantq.cli.options import DIRECTORY, FILE, Count
from tenantq.cli.output import Output, output_command
from tenantq.journal.target_url import local_path

_CRON: Final = """\
# cron: add with 'crontab -e'. Exit code 7 means that the previous run has not ended; the next one continues.
{lines}
"""
_SYSTEMD: Final = """\
# systemd: /etc/systemd/system/tenantq-{name}.service; credentials of object stores belong in /etc/default/tenantq
[Unit]
Description=tenantq {name}
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
EnvironmentFile=-/etc/default/tenantq
ExecStart={command}
SuccessExitStatus=8
TimeoutStartSec=6h

# systemd: /etc/systemd/system/tenantq-{name}.timer; enable with 'systemctl enable --now tenantq-{name}.timer'
[Unit]
Description=Start tenantq {name} regularly

[Timer]
OnCalendar=*-*-* {hour}:{minute:02d}:00
Persistent=true

[Install]
WantedBy=timers.target
"""
_AIRFLOW: Final = """\
# Airflow: dags/tenantq_{name}.py
from datetime import datetime, timedelta

from airflow import DAG
from airflow.providers.standard.operators.bash import BashOperator  # Airflow 2: airflow.operators.bash

with DAG(
    "tenantq_{name}",
    schedule="{minute} {hour} * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={{"retries": 2, "retry_delay": timedelta(minutes=5)}},
) as dag:
    # Exit code 8: some data was quarantined, and the rest processed. A retry does not help.
    BashOperator(task_id="run", bash_command={quoted}, skip_on_exit_code=8)
"""


@output_command()
@click.option("--journal", required=True, metavar="DIR", help="Directory or URL of the journal segments.")
@options.lake_option
@click.option("--prices", type=FILE, help="TOML file with the price book.")
@click.option("--minute", type=Count(0, 59), default=10, help="Minute of each hour.")
@click.option("--reports", type=DIRECTORY, metavar="DIR", help="Also write reports there, every day after 01:00.")
def schedule(journal: str, lake_path: str, *, prices: Path | None, minute: int, reports: Path | None) -> Output:
    """Print examples for cron, systemd and Airflow that run the pipeline every hour, and write reports every day.

    Reports include one for SOC 2 and one for GDPR article 30, for the platform and each tenant.
    """
    program = shutil.which("tenantq") or str(Path(sys.executable).with_name("tenantq"))
    words = ["--journal", _absolute(journal), "--lake", _absolute(lake_path)]
    words += ["--prices", str(prices.absolute())] if prices is not None else []
    jobs = {"pipeline": ("*", shlex.join([program, "pipeline", "run", *words]))}
    if reports is not None:
        words = ["--lake", _absolute(lake_path), "--out", str(reports.absolute())]
        jobs["report"] = ("1", shlex.join([program, "pipeline", "report", *words]))
    # cron ends a command at a percent sign, systemd replaces what follows one.
    lines = [f"{minute} {hour} * * * {command}".replace("%", r"\%") for hour, command in jobs.values()]
    units = [
        _SYSTEMD.format(name=name, hour=hour, minute=minute, command=command.replace("%", "%%"))
        for name, (hour, command) in jobs.items()
    ]
    dags = [
        _AIRFLOW.format(name=name, hour=hour, minute=minute, quoted=repr(command))
        for name, (hour, command) in jobs.items()
    ]
    texts = {"cron": _CRON.format(lines="\n".join(lines)), "systemd": "\n".join(units), "airflow": "\n".join(dags)}
    return Output(texts, *texts.values())


def _absolute(where: str) -> str:
    local = local_path(where)
    return str(local.absolute()) if local is not None else where
