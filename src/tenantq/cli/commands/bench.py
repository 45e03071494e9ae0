"""``tenantq bench``: measure a server, and the effect of a noisy neighbour."""

import asyncio
import contextlib
import ipaddress
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from tenantq.cli import exit_codes
from tenantq.cli.command_group import Command
from tenantq.cli.commands.bench_output import notes, print_report
from tenantq.cli.connection import ServerConnection, connected
from tenantq.cli.file_limit import raise_file_limit
from tenantq.cli.local_server import LocalServer, file_system
from tenantq.cli.options import FILE, Count, byte_size, duration
from tenantq.cli.output import json_option, print_json
from tenantq.cli.progress import seconds_bar
from tenantq.cli.stop_signals import StopSignals
from tenantq.client import AsyncClient
from tenantq.client.batcher import BYTES_MAX
from tenantq.domain import limits
from tenantq.domain.names import check_queue_name
from tenantq.errors import TenantqError
from tenantq.load.bench_run import CASES, DEFAULT_CASES, BenchRun
from tenantq.load.loaded_server import LoadedServer
from tenantq.load.report import BenchReport, LoadSettings, compare, load_report

_IN_FLIGHT_MAX: Final = 1_024
_COALESCE: Final = {"on": (True,), "off": (False,), "both": (True, False)}
_OWN: Final = LoadSettings()


@click.command(cls=Command)
@click.option("--case", "cases", type=click.Choice([*CASES, "all"]), multiple=True, help="What to measure; repeatable.  [default: add, cycle, batch]")  # fmt: skip
@click.option("--local", is_flag=True, help="Start a temporary server on loopback, measure it and remove it.")
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False, exists=True), metavar="DIR", help="With --local: directory on the disk to measure. Temporary data is created in it.  [default: .]")  # fmt: skip
@click.option("--durability", type=click.Choice(["fsync", "os"]), help="With --local: durability of replies.  [default: fsync]")  # fmt: skip
@click.option("--in-flight", type=Count(1, _IN_FLIGHT_MAX), default=_OWN.in_flight, help="Concurrent callers, for single messages.")  # fmt: skip
@click.option("--batch", type=Count(2, limits.BATCH_MESSAGES_MAX), default=_OWN.batch, help="Messages per batch.")  # fmt: skip
@click.option("--batches", "batches_in_flight", type=Count(1, 64), default=_OWN.batches_in_flight, help="Concurrent batches.")  # fmt: skip
@click.option("--size", type=byte_size, metavar="BYTES", default=str(_OWN.size), help="Body size.")
@click.option("--seconds", type=click.FloatRange(0.1, 3_600), metavar="SECONDS", default=_OWN.seconds, help="Measured time per case.")  # fmt: skip
@click.option("--warm-up", "warm_up_ms", type=duration, default="1s", help="Warm-up time per case.")  # fmt: skip
@click.option("--coalesce", type=click.Choice(sorted(_COALESCE)), default="on", help="Combine concurrent calls into one request, as the SDK does.")  # fmt: skip
@click.option("--queue", metavar="NAME", help="Queue to create, and delete at the end.  [default: a random name]")
@click.option("--reuse", is_flag=True, help="Use an existing, empty --queue. It is purged at the end.")
@click.option("--bytes-max", type=byte_size, metavar="BYTES", default="2GiB", help="Stop adding after this many bytes per case.")  # fmt: skip
@click.option("--flood", "flood_connections", type=Count(1, _IN_FLIGHT_MAX), default=_OWN.flood_connections, help="Case neighbour: connections of the flooding tenant.")  # fmt: skip
@click.option("--victim-rate", "victim_per_second", type=Count(1, 1_000), default=_OWN.victim_per_second, help="Case neighbour: adds per second of the other tenant.")  # fmt: skip
@click.option("--compare", "compared", type=FILE, help="Earlier --json output to compare with.")
@click.option("--yes", is_flag=True, help="Skip the prompt before loading a remote server.")
@json_option
@connected
def bench(
    connection: ServerConnection, *, cases: tuple[str, ...], local: bool, data_dir: Path | None, durability: str | None,
    queue: str | None, reuse: bool, coalesce: str, compared: Path | None, yes: bool, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Measure the throughput and latency of a server, through the SDK.

    Cases: add (single adds), cycle (add, poll, ack), batch (add and cycle in batches), neighbour (the effect of one
    tenant's flood on another; requires a platform administrator's token), all. Each case creates a queue and deletes it at
    the end.

    Every message is stored: it uses disk, journal and bandwidth of the server. Ctrl-C stops, cleans up and prints the
    results so far.

    \b
    Exit codes:
      0  measured
      1  calls failed, a case measured nothing, or cleanup failed
      2  wrong usage
      4  the token lacks permission
      5  a rate limit or quota refused calls, so the results show the limit
      6  the server cannot be reached, or --local cannot start
      7  the queue exists, or is not empty
      130, 143  interrupted; results so far are printed
    """
    load = _load(options)
    earlier = load_report(compared) if compared is not None else None
    chosen = CASES if "all" in cases else tuple(case for case in CASES if case in cases) or DEFAULT_CASES
    if reuse and queue is None:
        raise click.UsageError("--reuse requires --queue.")
    if queue is not None:
        check_queue_name(queue)
    if local:
        _check_local()
    elif data_dir is not None or durability is not None:
        raise click.UsageError("--data-dir and --durability require --local.")
    else:
        _confirm(connection.target.url, yes=yes)
    raise_file_limit()

    target, directory = connection.target, (data_dir or Path()).resolve()
    server = LoadedServer(
        url=target.url, token=target.token, tenant=target.tenant, timeout_ms=connection.timeout_ms, tls=target.tls
    )
    own = LocalServer(directory, durability or "fsync") if local else None
    run = partial(
        BenchRun, load=load, cases=chosen, coalesce=_COALESCE[coalesce], queue=queue, reuse=reuse,
        file_system=file_system(directory) if local else None,
    )  # fmt: skip
    report, failure, number = asyncio.run(_measured(run, server, own))
    if earlier is not None:
        report = compare(report, earlier)
    return _print_result(report, failure, number, as_json=as_json)


async def _measured(
    make_run: Callable[..., BenchRun], server: LoadedServer, own: LocalServer | None
) -> tuple[BenchReport, TenantqError | None, int]:
    """Return the report, why a measurement is missing, and the number of the signal that ended it. Measures ``own`` if given."""
    with StopSignals(last=own.kill if own is not None else None, also=(signal.SIGHUP,)) as signals:
        async with own or contextlib.nullcontext():
            if own is not None:
                server = LoadedServer(url=own.url, token=own.token, timeout_ms=server.timeout_ms)
            with seconds_bar() as progress:
                run = make_run(server=server, stop=signals.asked, progress=progress)
                report = await run.run()
    return report, run.failure, signals.number


# ---- options ----


def _load(options: dict[str, Any]) -> LoadSettings:
    load = LoadSettings(**options)
    if not 1 <= load.size <= limits.BODY_BYTES_MAX:
        raise click.BadParameter(f"must be 1 to {limits.BODY_BYTES_MAX:,} bytes", param_hint="--size")
    if load.batch * load.size > BYTES_MAX:
        raise click.BadParameter(f"the bodies of a batch are limited to {BYTES_MAX:,} bytes", param_hint="--batch")
    if load.warm_up_ms > 600_000:
        raise click.BadParameter("must be at most 10m", param_hint="--warm-up")
    if load.bytes_max < 1:
        raise click.BadParameter("must be at least 1", param_hint="--bytes-max")
    return load


def _check_local() -> None:
    context = click.get_current_context()
    for name in ("url", "token", "profile", "tenant"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--local starts its own server: omit --{name}.")


def _confirm(url: str, *, yes: bool) -> None:
    """Ask before loading a server on another machine."""
    host = AsyncClient(url).settings.host
    if yes or _is_loopback(host):
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"This puts load on the remote host {host}. Give --yes to confirm.")
    if not click.confirm(f"This puts maximum load on the server {url}. Continue?", err=True):
        raise click.ClickException("nothing was sent")


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


# ---- result ----


def _print_result(report: BenchReport, failure: TenantqError | None, number: int, *, as_json: bool) -> int:
    if as_json:
        print_json(report)
    else:
        print_report(report)
    failures = [f"{failure.message} [{failure.code}]"] if failure is not None else []
    for note in (*notes(report), *failures):
        click.echo(f"tenantq: {note}", err=True)
    return _exit_code(report, failure, number)


def _exit_code(report: BenchReport, failure: TenantqError | None, number: int) -> int:
    if number:
        return exit_codes.SIGNAL + number
    if failure is not None:
        return exit_codes.exit_code(failure)
    refused = any(figures.refusals for figures in report.cases)
    failed = {code for figures in report.cases for code in figures.errors}
    nothing = any(not figures.calls for figures in report.cases)
    if refused:
        return exit_codes.LIMITED
    if nothing and failed == {"unavailable"}:
        return exit_codes.UNAVAILABLE
    return exit_codes.ERROR if nothing or failed or report.left_behind else exit_codes.OK
