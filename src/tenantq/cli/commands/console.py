"""``tenantq console``: the live console, or one snapshot of all tenants for scripts."""

import asyncio
import signal
import socket
import sys
from typing import Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.command_group import Command
from tenantq.cli.connection import ServerConnection, connected
from tenantq.cli.options import duration
from tenantq.cli.output import Output, Table, json_option, print_output
from tenantq.cli.stop_signals import StopSignals
from tenantq.console.reader import ConsoleReader, ConsoleSnapshot
from tenantq.domain.urls import check_secure_url
from tenantq.errors import Unavailable
from tenantq.runtime.clock import SystemClock
from tenantq.settings import shown_address, split_address

_WEB_DEFAULT: Final = "127.0.0.1:7080"
_REFRESH_MS_MIN: Final = 500
_REFRESH_MS_MAX: Final = 3_600_000
_FIELDS: Final = {
    **{name: name for name in ("name", "status", "on_hold", "weight")},
    "quota_state": "health",
    **{name: name for name in ("backlog", "in_flight", "dead")},
    "throttled_total": "throttled",
    "stored_bytes": "bytes",
    "queues": "queues",
}
"""What scripts get of a tenant, and the attribute of ``TenantSummary``. None means not granted."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@click.command(cls=Command)
@click.option("--refresh", "refresh_ms", type=duration, default="2s", help="Refresh interval.")
@click.option("--once", is_flag=True, help="Print a table of all tenants and exit.")
@click.option("--web", is_flag=False, flag_value=_WEB_DEFAULT, metavar="[HOST:PORT]", help=f"Serve the console to browsers, by default on {_WEB_DEFAULT}. Users log in with their own tokens.")  # fmt: skip
@click.option("--web-origin", metavar="URL", help="Public https URL of the proxy in front of --web.  [default: http and the address]")  # fmt: skip
@json_option
@connected
def console(
    connection: ServerConnection, *, refresh_ms: int, once: bool, web: str | None, web_origin: str | None, as_json: bool
) -> int:
    """Watch and manage tenants, queues and security in the terminal, or in a browser.

    A platform administrator sees all tenants; other credentials see their own. Missing permissions show as "not granted".
    Press ? for the keys, q to quit. Requires the extra 'console', or 'web' for --web; --once and --json need neither.
    """
    if not _REFRESH_MS_MIN <= refresh_ms <= _REFRESH_MS_MAX:
        raise click.UsageError("--refresh must be between 500ms and 1h.")
    if once or as_json:
        return print_output(_output(asyncio.run(_read(connection))), as_json=as_json)
    if web is not None:
        return asyncio.run(_serve(connection, web, web_origin, refresh_ms))
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):  # Textual draws on stderr
        raise click.UsageError("The console requires a terminal. In scripts, use --json or --once.")
    return asyncio.run(_run(connection, refresh_ms))


async def _read(connection: ServerConnection) -> ConsoleSnapshot:
    async with connection.async_client() as client:
        return await ConsoleReader(client, SystemClock(), connection.target.tenant).read(None)


async def _run(connection: ServerConnection, refresh_ms: int) -> int:
    """Run the console until the user quits or a signal arrives. The terminal is restored in any case."""
    try:
        from tenantq.console.app import ConsoleApp  # noqa: PLC0415  # needs Textual, which is an extra
    except ImportError as error:
        raise Unavailable(
            "the console requires Textual: run pip install '.[console]' in the checkout, or use --once"
        ) from error
    target = connection.target
    async with connection.async_client() as client:
        app = ConsoleApp(client, url=target.url, tenant=target.tenant, refresh_ms=refresh_ms)
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, app.exit, None, exit_codes.SIGNAL + number)
        refused = await app.run_async()
    if refused is not None:
        raise refused
    return app.return_code or exit_codes.OK


async def _serve(connection: ServerConnection, address: str, origin: str | None, refresh_ms: int) -> int:
    """Serve the console to browsers until a signal arrives. The operator's own credential is not used."""
    try:
        from tenantq.console import web_server  # noqa: PLC0415  # needs textual-serve, which is an extra
    except ImportError as error:
        raise Unavailable("--web requires textual-serve: run pip install '.[web]' in the checkout") from error
    try:
        sock = socket.create_server(split_address("--web", address))
    except OSError as error:
        raise Unavailable(f"--web {address}: {error.strerror or error}") from error
    target = connection.target
    with sock, StopSignals() as signals:
        shown = origin or f"http://{shown_address('--web', address, sock.getsockname()[1])}"
        settings = web_server.WebSettings(
            origin=check_secure_url("--web-origin", shown.rstrip("/"), origin_only=True),
            url=target.url,
            tenant=target.tenant,
            ca_file=target.tls.ca_file,
            refresh_ms=refresh_ms,
        )
        click.echo(f"console on {settings.origin}")  # connections wait until it is served
        await web_server.serve_console(settings, SystemClock(), sock, signals.asked)
    return exit_codes.OK


def _output(snapshot: ConsoleSnapshot) -> Output:
    tenants = [{name: getattr(one, field) for name, field in _FIELDS.items()} for one in snapshot.tenants]
    table = Table([name.replace("_", " ") for name in _FIELDS], [tuple(one.values()) for one in tenants], "no tenants")
    return Output({"tenants": tenants, "all_tenants": snapshot.everyone}, table)
