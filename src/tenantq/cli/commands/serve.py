"""``tenantq serve``: run a server process."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.command_group import Command
from tenantq.cli.connection_limit import within_limit
from tenantq.cli.file_limit import raise_file_limit
from tenantq.cli.logs import set_up_logs
from tenantq.cli.offline_store import file_error
from tenantq.cli.options import FILE, LOG_FORMAT, LOG_LEVEL, Count, duration, server_options
from tenantq.cli.output import panel
from tenantq.cli.standard_streams import give_up_stdout
from tenantq.cli.stop_signals import StopSignals
from tenantq.cluster.supervision.removed_shards import check_empty
from tenantq.cluster.supervision.supervisor import Supervisor
from tenantq.domain.formatting import nested
from tenantq.errors import Invalid, TenantqError, Unavailable
from tenantq.gates.api_key import check_token
from tenantq.runtime.futures import first_of, run_until
from tenantq.server import Server
from tenantq.server.cluster_member import HostServer
from tenantq.server.listen_addresses import opened
from tenantq.settings import ADMIN_TOKEN, OFF, RPC_DEFAULT, ServerSettings, load_settings, shown_address, shown_url
from tenantq.store.address import parse_store
from tenantq.store.shard_directories import SHARDS_MAX, check_there, parent_of, remember_count, shard_count

log = logging.getLogger("tenantq")

SHARD_COMMAND: Final = (sys.executable, "-m", "tenantq.cli.shard_process")
"""Starts the process of one shard."""

_YOUNG_OBJECTS: Final = 10_000
"""New objects before a garbage collection. A burst of requests exceeds Python's default of 700, but leaves no cyclic garbage."""
_M_MMAP_THRESHOLD: Final = -3  # of malloc.h
_MAPPED_BYTES: Final = 2 << 20  # more than one message, in any form
_SWITCH_S: Final = 0.000_5
"""The interval after which a background thread must yield the interpreter to the event loop."""


@click.command(cls=Command)
@server_options
@click.option("--rpc", metavar="HOST:PORT", help="Cap'n Proto address; port 0 picks a free port, off disables it.  [env var: TENANTQ_RPC; default: 127.0.0.1:7071, if it is free]")  # fmt: skip
@click.option("--store", metavar="URL", help="Store data in Redis or Valkey (redis://HOST:PORT, redis+cluster://HOST:PORT,HOST:PORT, rediss:// for TLS) or in PostgreSQL (postgresql://USER@HOST/DATABASE). Put a URL with a password into the environment or the --config file.  [env var: TENANTQ_STORE; default: the embedded store, in the data directory]")  # fmt: skip
@click.option("--shards", type=Count(1, SHARDS_MAX), help="Number of shards. Each tenant belongs to one shard. The embedded store runs a process for each.  [env var: TENANTQ_SHARDS__COUNT or, with --store, TENANTQ_CLUSTER__SHARDS; default: the number in the store; for a new one 1, or with --store 64]")  # fmt: skip
@click.option("--processes", "cluster__processes", type=Count(1, SHARDS_MAX), help="Number of processes that share the shards of a --store behind one address.  [env var: TENANTQ_CLUSTER__PROCESSES; default: 1]")  # fmt: skip
@click.option("--config", type=FILE, envvar="TENANTQ_CONFIG", show_envvar=True, help="TOML file with settings.")
@click.option("--durability", "shard__durability", type=click.Choice(["fsync", "os"]), help="Reply after the data is on disk (fsync), or when the operating system has it (os).  [env var: TENANTQ_SHARD__DURABILITY; default: fsync]")  # fmt: skip
@click.option("--tls-certificate", "tls__certificate", metavar="FILE", help="PEM file of the certificate and its chain. Enables HTTPS.")  # fmt: skip
@click.option("--tls-key", "tls__key", metavar="FILE", help="PEM file of the certificate's key.")
@click.option("--grace", "grace_ms", type=duration, help="Time that a stop waits for requests in flight.  [env var: TENANTQ_GRACE_MS; default: 30s]")  # fmt: skip
@click.option("--log-level", type=LOG_LEVEL, help="Lowest level to log.  [env var: TENANTQ_LOG_LEVEL; default: info]")
@click.option("--log-format", type=LOG_FORMAT, help="Log format on stderr: text lines, or a JSON object per line.  [env var: TENANTQ_LOG_FORMAT; default: text]")  # fmt: skip
def serve(*, config: Path | None, shards: int | None, **flags: Any) -> int:
    """Run a server for HTTP and Cap'n Proto clients.

    Settings come from flags, environment variables (TENANTQ_...) and a TOML file, in this order of precedence.
    TENANTQ_ADMIN_TOKEN sets the first administrator's token. Without it, the first start creates a token and shows it once.

    SIGTERM or Ctrl-C stops cleanly: requests in flight finish, leases are kept, and the exit code is 0. A second signal
    exits immediately, which is as safe as a crash.

    \b
    Exit codes:
      0    stopped cleanly
      1    the store failed; only acknowledged changes are kept
      2    wrong usage or settings
      6    cannot start: the address or the data directory is in use or not accessible
      7    cannot start: a shard to be removed still has tenants
      128+ killed by a second signal; the code is 128 plus the signal number
    """
    flags |= {"shards__count": shards, "cluster__shards": shards}
    given = nested((name.replace("__", "."), value) for name, value in flags.items() if value is not None)
    settings = load_settings(config, os.environ, given)
    set_up_logs(settings.log_level, settings.log_format)
    data_dir = Path(settings.data_dir)
    if (home := parent_of(data_dir)) is not None:
        raise Invalid(f"data_dir: {data_dir} is one shard of {home}. Serve {home} instead")
    keep_private(data_dir)
    admin_token = _admin_token()
    processes = settings.cluster.processes
    if settings.store is None:
        if processes > 1:
            raise Invalid("cluster.processes: requires a store that processes can share. Set store, or use --shards.")
        processes = _embedded_shards(data_dir, settings.shards.count)
    settings = within_limit(settings, raise_file_limit())
    return run_loop(_supervise(settings, processes, admin_token) if processes > 1 else _serve(settings, admin_token))


def _embedded_shards(data_dir: Path, wanted: int | None) -> int:
    """Return the number of shards to serve from a data directory, by default as many as it has. Removes empty shards."""
    before = shard_count(data_dir)
    check_there(data_dir)
    count = wanted or before
    if count < before:
        check_empty(data_dir, count, before)
        remember_count(data_dir, count)
    return count


def _admin_token() -> str | None:
    """Return the first administrator's token from the environment. Raises Invalid with the name of the variable."""
    token = os.environ.get(ADMIN_TOKEN) or None
    try:
        return check_token(token) if token is not None else None
    except Invalid as error:
        raise Invalid(f"{ADMIN_TOKEN}: {error.message.removeprefix('token: ')}") from error


def keep_private(data_dir: Path) -> None:
    """Set the umask: other users cannot read new files. The group can if the data directory allows it."""
    try:
        shared = data_dir.stat().st_mode & 0o070
    except OSError:
        shared = 0  # it will be created for its owner only
    os.umask(0o007 | (0o070 & ~shared))


def run_loop(work: Coroutine[Any, Any, int]) -> int:
    """Run a server's coroutine, on uvloop if it is installed."""
    sys.setswitchinterval(_SWITCH_S)
    _map_large_blocks()
    gc.set_threshold(_YOUNG_OBJECTS)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(work)


def _map_large_blocks() -> None:
    """Have glibc map large blocks one by one, which keeps their memory from staying with the process when they are freed."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415  # not available on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _supervise(settings: ServerSettings, count: int, admin_token: str | None) -> int:
    """Serve with one process per shard."""
    supervisor = Supervisor(settings, count, admin_token, SHARD_COMMAND)
    signals = StopSignals(last=supervisor.kill)
    try:
        url = await supervisor.start(signals.asked)
        if url is None:
            return exit_codes.OK if await supervisor.stop() else exit_codes.ERROR
        _announce(url, supervisor.rpc_address)
        rpc = supervisor.rpc_address or OFF
        log.info("ready", extra={"url": url, "processes": count, "rpc": rpc, "pid": os.getpid()})
        failure = await supervisor.run(signals.asked)
        log.info("stopping", extra={"because": failure or signals.name})
        is_clean = await supervisor.stop()
    finally:
        supervisor.kill()
    if failure:
        click.echo(f"tenantq: {failure} [unavailable]", err=True)
        return exit_codes.ERROR
    log.info("stopped")
    return exit_codes.OK if is_clean else exit_codes.ERROR


def _announce(url: str, rpc: str | None) -> None:
    """Print the addresses on stdout. If stdout is closed, log a warning and serve anyway."""
    try:
        if rpc is not None:
            click.echo(f"Cap'n Proto on {rpc}")
        click.echo(f"ready on {url}")
    except OSError as error:
        log.warning("stdout cannot be written: %s", error.strerror)
        give_up_stdout()


async def _serve(settings: ServerSettings, admin_token: str | None) -> int:
    signals = StopSignals()
    kind = Server if settings.store is None else HostServer
    server = kind(
        settings,
        admin_token=admin_token,
        rpc_default=RPC_DEFAULT,
        show_token=lambda token: show_token(token, shown_url(settings, server.port)),
    )
    url = await started(server, signals)
    if url is None:
        log.info("stopped", extra={"because": signals.name})
        return exit_codes.OK
    store = str(parse_store(settings.store)) if settings.store is not None else "embedded"
    log.info(
        "store open", extra={"data_dir": settings.data_dir, "store": store, "durability": settings.shard.durability}
    )
    rpc = None
    if server.rpc_port is not None and server.transports.rpc_address is not None:
        rpc = shown_address("rpc", server.transports.rpc_address, server.rpc_port)
    _announce(url, rpc)
    log.info("ready", extra={"url": url, "rpc": rpc or OFF, "pid": os.getpid()})
    await first_of(signals.asked.wait(), server.failed())
    failed = server.failure is not None
    log.info("stopping", extra={"because": "the store failed" if failed else signals.name})
    code = await closed(server, 0 if failed else None)
    if code == exit_codes.OK:
        log.info("stopped")
    return code


async def started(server: Server | HostServer, signals: StopSignals) -> str | None:
    """Start a server and return its URL, or None if a signal arrived before. Raises a typed error if it cannot start."""
    asked = asyncio.ensure_future(signals.asked.wait())
    try:
        starting = await run_until(asked, _start(server))
        return None if starting.cancelled() else starting.result()
    finally:
        asked.cancel()


def _check_address(settings: ServerSettings) -> None:
    """Raise Unavailable if the address is in use, before a new data directory is created."""
    if not Path(settings.data_dir).exists():
        for sock in opened("http", settings.http):
            sock.close()


async def _start(server: Server | HostServer) -> str:
    settings = server.settings
    _check_address(settings)
    try:
        await server.start()
    except OSError as error:
        raise file_error(error) from error
    return shown_url(settings, server.port)


async def closed(server: Server | HostServer, grace_ms: int | None = None) -> int:
    """Close a server and return the exit code. Prints one line if the store failed."""
    try:
        await server.close(grace_ms)
    except (TenantqError, OSError):
        if server.failure is None:
            raise
    failure = server.failure
    if failure is None:
        return exit_codes.OK
    click.echo(f"tenantq: the store failed and the server stopped: {failure.message} [unavailable]", err=True)
    return exit_codes.ERROR


def show_token(token: str, url: str) -> None:
    """Print the first administrator's token. Raises Unavailable if stdout fails, because an unseen token must not be valid."""
    lines = [
        "Administrator token with all permissions, shown only once:",
        "",
        token,
        "",
        f"Store it: tenantq profile add admin --url {url}",
        "(prompts for the token), or: export TENANTQ_TOKEN=<token>",
    ]
    try:
        click.echo(panel("first administrator", "\n".join(lines)))
    except OSError as error:
        give_up_stdout()
        raise Unavailable(
            f"cannot print the first administrator's token on stdout: {error.strerror}. "
            f"Start with a readable stdout, or set {ADMIN_TOKEN}"
        ) from error
