"""``tenantq worker``: run a worker that a module defines."""

import traceback
from typing import Final, Literal

import click
import msgspec
from click.core import ParameterSource

from tenantq.cli import exit_codes
from tenantq.cli.command_group import Command
from tenantq.cli.connection import ServerConnection, connected
from tenantq.cli.logs import set_up_logs
from tenantq.cli.options import LOG_FORMAT, LOG_LEVEL, Count, duration
from tenantq.client import AsyncClient
from tenantq.errors import Invalid, TenantqError
from tenantq.worker import Worker, load_worker
from tenantq.worker.worker import CONCURRENCY_MAX

_TLS_FIELDS: Final = {"ca_file": "ca_file", "cert_file": "certificate_file", "key_file": "key_file"}


@click.command(cls=Command)
@click.argument("address", metavar="MODULE:NAME")
@click.option("--concurrency", type=Count(1, CONCURRENCY_MAX), help="Maximum number of concurrent handlers.  [default: as in the module]")  # fmt: skip
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Run only the task of this queue; repeatable.")
@click.option("--drain", "drain_ms", type=duration, help="Time that a stop waits for handlers.  [default: as in the module]")  # fmt: skip
@click.option("--burst", is_flag=True, help="Stop when all queues are empty.")
@click.option("--log-level", type=LOG_LEVEL, default="info", help="Lowest level to log.")
@click.option("--log-format", type=LOG_FORMAT, default="text", help="Log format on stderr.")
@connected
def worker(
    connection: ServerConnection,
    *,
    address: str,
    concurrency: int | None,
    queues: tuple[str, ...],
    drain_ms: int | None,
    burst: bool,
    log_level: str,
    log_format: Literal["text", "json"],
) -> int:
    """Run a worker until SIGTERM or Ctrl-C.

    MODULE:NAME is a Worker in a Python module, such as shop.tasks:worker. The working directory is searched first.
    Connection options given here or in the environment override the module's. Another server gets only the token given
    here, never the module's.

    On the first signal, handlers finish and other messages are released. A second signal exits immediately.

    \b
    Exit codes:
      0  stopped cleanly
      1  handlers were interrupted; their messages return when their leases expire
      others as for every command
    """
    found = _loaded(address)
    _redirect(found, connection)
    if concurrency is not None:
        if found.prefetch == found.concurrency:  # the default
            found.prefetch = concurrency
        found.concurrency = concurrency
    if queues:
        found.queues = list(queues)
    if drain_ms is not None:
        found.drain_ms = drain_ms
    set_up_logs(log_level, log_format)
    return exit_codes.OK if found.run(burst=burst) else exit_codes.ERROR


def _redirect(worker: Worker, connection: ServerConnection) -> None:
    """Apply the server, credential, tenant and TLS files that the command line gives to the worker."""
    target, given = connection.target, connection.given
    tls = {field: getattr(target.tls, field) for option, field in _TLS_FIELDS.items() if option in given}
    is_other_server = target.url.rstrip("/") != worker.settings.url.rstrip("/")
    if "profile" in given or ("url" in given and is_other_server):  # which must not get the module's token
        timeout_ms = worker.settings.timeout_ms
        worker.settings = AsyncClient(target.url, target.token, timeout_ms=timeout_ms, tls=target.tls).settings
    elif tls:
        own = msgspec.structs.replace(worker.settings.tls, context=None, **tls)
        worker.settings = msgspec.structs.replace(worker.settings, tls=own)
    if "token" in given:
        worker.settings = msgspec.structs.replace(worker.settings, token=target.token)
    if click.get_current_context().get_parameter_source("timeout_ms") is ParameterSource.COMMANDLINE:
        worker.settings = msgspec.structs.replace(worker.settings, timeout_ms=connection.timeout_ms)
    if "tenant" in given and target.tenant is not None:
        worker.fleet, worker.tenants = True, [target.tenant]


def _loaded(address: str) -> Worker:
    """Return the worker. An error in its module is raised as Invalid with its file and line, because it is not a bug in tenantq."""
    try:
        return load_worker(address)
    except TenantqError:
        raise
    except Exception as error:
        frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith("<frozen")]
        place = (
            (error.filename, error.lineno)
            if isinstance(error, SyntaxError)
            else (frames[-1].filename, frames[-1].lineno)
        )
        module = address.partition(":")[0]
        raise Invalid(
            f"worker: the module {module} cannot be loaded: {type(error).__name__}: {error} ({place[0]}, line {place[1]});"
            f" run python -c 'import {module}' for the traceback"
        ) from error
