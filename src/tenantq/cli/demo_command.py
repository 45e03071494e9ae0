"""``tenantq demo``: a shard with traffic on it, shown once a second until a signal comes."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tenantq.cli.options import data_dir as data_dir_option
from tenantq.demo import DEAD_LETTERS, QUEUE, TENANTS, WAITS_KEPT, Line, Traffic
from tenantq.engine.shard import Shard
from tenantq.errors import TenantqError

if TYPE_CHECKING:
    from pathlib import Path

_HEADINGS = ("tenant", "weight", "added/s", "done/s", "ready", "in flight", "dead", "p50 ms", "p99 ms")


@click.command()
@data_dir_option
@click.option("--seconds", type=click.IntRange(min=1), metavar="N", help="Stop after N seconds.  [default: never]")
@click.pass_context
def demo(context: click.Context, data_dir: Path, *, seconds: int | None) -> None:
    """Run a little traffic on a store, and show how three tenants fare.

    One tenant is loud, two are quiet; one worker fleet serves them all in fair turns. Some jobs always fail and end as
    dead letters. Ctrl-C or SIGTERM stops in good order: handlers finish, other messages are given back, the store is
    closed. A second signal ends the process at once.

    \b
    Exit codes:
      0    stopped in good order
      1    the shard failed at work
      2    the store cannot be opened, or wrong usage
      128+ a second signal forced the end; the number is 128 plus the signal's
    """  # noqa: D301  # \b is click's mark for lines that stay as they are
    context.exit(asyncio.run(_demo(data_dir, seconds)))


class _Signals:
    """The first SIGINT or SIGTERM asks to stop, the second one ends the process."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._count = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._received)

    def _received(self, number: int, _: object) -> None:
        self._count += 1
        if self._count > 1:
            os._exit(128 + number)
        self._loop.call_soon_threadsafe(self.asked.set)


async def _demo(data_dir: Path, seconds: int | None) -> int:
    signals = _Signals()
    shard = Shard(data_dir)
    await shard.open()
    try:
        traffic = Traffic(shard)
        await traffic.start()
        click.echo(_cheat_sheet(data_dir))
        await _show(traffic, signals.asked, seconds)
        if traffic.failed.done():
            return _failed(traffic.failed.result())
        if sys.stdout.isatty():
            click.echo("stopping; press Ctrl-C again to end at once")
        waiting, leased = await traffic.stop()
    except TenantqError as error:
        return _failed(error)
    finally:
        await shard.close()
    click.echo(f"stopped: {waiting} messages wait, {leased} leases are kept, all of it is in {data_dir}")
    return 0


def _failed(error: BaseException) -> int:
    if not isinstance(error, TenantqError):
        raise error
    click.echo(f"tenantq: {error.message}", err=True)
    return 1


def _cheat_sheet(data_dir: Path) -> str:
    shown = shlex.quote(str(data_dir))
    return f"""\
tenantq demo: the queue {QUEUE!r} of {", ".join(tenant.name for tenant in TENANTS)}, data in {shown}
Stop with Ctrl-C; the data stays. Until then process {os.getpid()} has the directory:
  $ tenantq doctor --data-dir {shown}
says so now, and recounts everything later. Then, in `python -m asyncio`:
  >>> from tenantq import Shard
  >>> shard = Shard({str(data_dir)!r}); await shard.open()
  >>> shard.stats("acme", "{QUEUE}")
  >>> await shard.peek("acme", "{DEAD_LETTERS}")
  >>> await shard.redrive("acme", "{QUEUE}")
  >>> await shard.close()
"""


async def _show(traffic: Traffic, asked: asyncio.Event, seconds: int | None) -> None:
    """Show the figures once a second until asked to stop, the time is over or the traffic fails."""
    console = Console()
    stop = asyncio.ensure_future(asked.wait())
    second = 0
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while not stop.done() and not traffic.failed.done() and second != seconds:
            await asyncio.wait((stop, traffic.failed), timeout=1, return_when=asyncio.FIRST_COMPLETED)
            second += 1
            lines = traffic.lines()
            if console.is_terminal:
                live.update(_table(lines, second), refresh=True)
            else:
                for line in lines:
                    click.echo(_plain(line, second))
    stop.cancel()


def _table(lines: list[Line], second: int) -> Table:
    title = f"second {second}; p50 and p99 are the waits of the last {WAITS_KEPT} messages"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "tenant" else "right", no_wrap=True)
    for line in lines:
        table.add_row(
            line.tenant,
            str(line.weight),
            f"{line.added_per_s:,}",
            f"{line.done_per_s:,}",
            f"{line.ready:,}",
            f"{line.in_flight:,}",
            f"{line.dead:,}",
            f"{line.wait_p50_ms:,}",
            f"{line.wait_p99_ms:,}",
        )
    return table


def _plain(line: Line, second: int) -> str:
    return (
        f"{second}s {line.tenant} added/s={line.added_per_s} done/s={line.done_per_s} ready={line.ready}"
        f" in_flight={line.in_flight} dead={line.dead} wait_p50_ms={line.wait_p50_ms} wait_p99_ms={line.wait_p99_ms}"
    )
