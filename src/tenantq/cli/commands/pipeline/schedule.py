"""``tenantq pipeline schedule``: examples that run the pipeline at fixed times."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

import click

from tenantq.cli.commands.pipeline import options
from tenantq.cli.options import FILE
from tenantq.cli.output import Output, output_command
from tenantq.journal.export_target import local_path

_CRON: Final = """\
# cron: add with 'crontab -e'. Exit code 7 means that the previous run has not ended; the next one continues.
{minute} * * * * {command}
"""
_SYSTEMD: Final = """\
# systemd: /etc/systemd/system/tenantq-pipeline.service
[Unit]
Description=tenantq pipeline
After=network-online.target

[Service]
Type=oneshot
ExecStart={command}
SuccessExitStatus=8
TimeoutStartSec=6h

# systemd: /etc/systemd/system/tenantq-pipeline.timer; enable with 'systemctl enable --now tenantq-pipeline.timer'
[Unit]
Description=Run the tenantq pipeline every hour

[Timer]
OnCalendar=*-*-* *:{minute:02d}:00
Persistent=true

[Install]
WantedBy=timers.target
"""
_AIRFLOW: Final = """\
# Airflow: dags/tenantq_pipeline.py
from datetime import datetime, timedelta

from airflow import DAG
from airflow.providers.standard.operators.bash import BashOperator  # Airflow 2: airflow.operators.bash

with DAG(
    "tenantq_pipeline",
    schedule="{minute} * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={{"retries": 2, "retry_delay": timedelta(minutes=5)}},
) as dag:
    BashOperator(task_id="run", bash_command={quoted})
"""


@output_command()
@click.option("--journal", required=True, metavar="DIR", help="Directory or URL of the journal segments.")
@options.lake_option
@click.option("--prices", type=FILE, metavar="FILE", help="TOML file with the price book.")
@click.option(
    "--minute", type=click.IntRange(0, 59), metavar="N", default=10, show_default=True, help="Minute of each hour."
)
def schedule(journal: str, lake_path: str, *, prices: Path | None, minute: int) -> Output:
    """Print examples for cron, systemd and Airflow that run the pipeline every hour."""
    program = shutil.which("tenantq") or str(Path(sys.executable).with_name("tenantq"))
    words = [program, "pipeline", "run", "--journal", _absolute(journal), "--lake", _absolute(lake_path)]
    if prices is not None:
        words += ["--prices", str(prices.absolute())]
    command = shlex.join(words)
    # cron ends a command at a percent sign, systemd replaces what follows one.
    texts = {
        "cron": _CRON.format(minute=minute, command=command.replace("%", r"\%")),
        "systemd": _SYSTEMD.format(minute=minute, command=command.replace("%", "%%")),
        "airflow": _AIRFLOW.format(minute=minute, quoted=repr(command)),
    }
    return Output(texts, *texts.values())


def _absolute(where: str) -> str:
    local = local_path(where)
    return str(local.absolute()) if local is not None else where
