"""``tenantq demo``: a real server with traffic, and its figures once a second."""

import asyncio
import os
import secrets
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tenantq.cli import exit_codes
from tenantq.cli.command_group import Command
from tenantq.cli.commands.demo_traffic import QUEUE, WAITS_KEPT, DemoFigures, DemoTokens, Traffic, prepare
from tenantq.cli.commands.serve import closed, keep_private, run_loop, started
from tenantq.cli.logs import set_up_logs
from tenantq.cli.options import Count, server_options
from tenantq.cli.output import console
from tenantq.cli.stop_signals import StopSignals
from tenantq.errors import Invalid, TenantqError
from tenantq.server import Server
from tenantq.settings import ADMIN_TOKEN, ServerSettings, load_settings

_HEADINGS: Final = ("tenant", "weight", "added/s", "done/s", "ready", "in flight", "dead", "p50 ms", "p99 ms")
_TOKENS_FILE: Final = "demo-tokens.json"


@click.command(cls=Command)
@server_options
@click.option("--seconds", type=Count(min=1), help="Stop after N seconds.  [default: never]")
def demo(data_dir: str | None, http: str | None, *, seconds: int | None) -> int:
    """Run a server with sample traffic and show the figures of three tenants.

    One tenant is loud, two are quiet. One worker fleet serves all of them fairly, over HTTP. Some jobs always fail and
    become dead letters. A cheat sheet shows the address, tokens and commands to try in another terminal.

    Ctrl-C or SIGTERM stops cleanly: handlers finish, other messages are released, the store is closed. A second signal
    exits immediately.

    \b
    Exit codes:
      0    stopped cleanly
      1    the store failed
      2    wrong usage or settings
      6    cannot start: the address or the data directory is in use or not accessible
      128+ killed by a second signal; the code is 128 plus the signal number
    """
    settings = load_settings(None, os.environ, {"data_dir": data_dir, "http": http})
    set_up_logs("warning", settings.log_format)
    keep_private(Path(settings.data_dir))
    return run_loop(_demo(settings, seconds))


async def _demo(settings: ServerSettings, seconds: int | None) -> int:
    signals = StopSignals()
    tokens = _load_tokens(settings)
    server = Server(settings, admin_token=tokens.admin)
    url = await started(server, signals)
    if url is None:
        return exit_codes.OK
    left: tuple[int, int] | None = None
    try:
        await prepare(url, tokens)
        _save_tokens(settings, tokens)
        traffic = Traffic(url, tokens)
        await traffic.start()
        click.echo(_cheat_sheet(url, settings.data_dir, tokens))
        await _show(traffic, server, signals, seconds)
        if server.failure is None:
            if sys.stdout.isatty():
                click.echo("stopping; press Ctrl-C again to exit immediately")
            left = await traffic.stop()
    except TenantqError:
        if server.failure is None:
            raise
    finally:
        code = await closed(server, 0 if left is None else None)
    if left is None or code != exit_codes.OK:
        return code
    click.echo(f"stopped: {left[0]} ready messages and {left[1]} leases remain in {settings.data_dir}")
    return exit_codes.OK


def _load_tokens(settings: ServerSettings) -> DemoTokens:
    """Return the tokens of an earlier demo in this directory, or new ones. An administrator token in the environment takes precedence."""
    file = Path(settings.data_dir) / _TOKENS_FILE
    try:
        tokens = msgspec.json.decode(file.read_bytes(), type=DemoTokens)
    except (FileNotFoundError, NotADirectoryError):
        tokens = DemoTokens(f"demo_{secrets.token_hex(24)}")
    except (OSError, msgspec.MsgspecError) as error:
        raise Invalid(f"{file} cannot be read. Delete it to create new tokens") from error
    tokens.admin = os.environ.get(ADMIN_TOKEN) or tokens.admin
    return tokens


def _save_tokens(settings: ServerSettings, tokens: DemoTokens) -> None:
    file = Path(settings.data_dir) / _TOKENS_FILE
    file.touch(mode=0o600)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(tokens)) + b"\n")


def _cheat_sheet(url: str, data_dir: str, tokens: DemoTokens) -> str:
    """Return what to try in another terminal. With the table below, it fits a terminal of 80 columns and 24 lines."""
    command = _this_command()
    return f"""\
tenantq demo: {url}, data in {data_dir}. Stop with Ctrl-C.
The tokens of all tenants are in {Path(data_dir) / _TOKENS_FILE}.

In another terminal, watch it as administrator:
  export TENANTQ_URL={url}
  export TENANTQ_TOKEN={tokens.admin}
  {command} console
Or work as the tenant acme:
  export TENANTQ_TOKEN={tokens.tenants["acme"]}
  {command} queue list
  {command} add jobs '{{"hello": "world"}}' --priority 9
  {command} poll jobs --ack
  {command} redrive {QUEUE} --dry-run
  curl -H "Authorization: Bearer $TENANTQ_TOKEN" $TENANTQ_URL/v1/queues/{QUEUE}
The HTTP API: {url}/docs
"""


def _this_command() -> str:
    """Return a command that starts this program from any directory."""
    found = shutil.which("tenantq")
    here = Path(sys.argv[0]).resolve()
    if found is not None and Path(found).resolve() == here:
        return "tenantq"
    return shlex.quote(str(here))


async def _show(traffic: Traffic, server: Server, signals: StopSignals, seconds: int | None) -> None:
    """Show the figures once a second until a signal arrives, the time is over or something fails."""
    stdout = console()
    ends: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(signals.asked.wait()),
        asyncio.ensure_future(server.failed()),
    ]
    second = 0
    try:
        with Live(console=stdout, auto_refresh=False, transient=False) as live:
            while second != seconds:
                done, _ = await asyncio.wait([*ends, traffic.failed], timeout=1, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    break
                second += 1
                _show_figures(await traffic.figures(), second, live, stdout)
    finally:
        for end in ends:
            end.cancel()
    if traffic.failed.done():
        raise traffic.failed.result()


def _show_figures(figures: list[DemoFigures], second: int, live: Live, stdout: Console) -> None:
    if stdout.is_terminal:
        live.update(_table(figures, second), refresh=True)
        return
    for one in figures:
        click.echo(_plain(one, second))
    sys.stdout.flush()


def _table(tenants: list[DemoFigures], second: int) -> Table:
    title = f"second {second}; p50 and p99 are the waits of the last {WAITS_KEPT} messages"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "tenant" else "right", no_wrap=True)
    for one in tenants:
        name, *figures = msgspec.structs.astuple(one)
        table.add_row(name, *(f"{figure:,}" for figure in figures))
    return table


def _plain(one: DemoFigures, second: int) -> str:
    return (
        f"{second}s {one.tenant} added/s={one.added_per_s} done/s={one.done_per_s} ready={one.ready}"
        f" in_flight={one.in_flight} dead={one.dead} wait_p50_ms={one.wait_p50_ms} wait_p99_ms={one.wait_p99_ms}"
    )
