"""The command line: its commands, and every error as one line on stderr."""

from __future__ import annotations

import logging
import os
import traceback
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.command_group import LazyGroup
from tenantq.cli.standard_streams import give_up_stdout
from tenantq.errors import TenantqError

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("tenantq")

DEBUG: Final = "TENANTQ_DEBUG"
"""The variable that has the place of a bug shown."""

_COMMANDS: Final = {
    "Messages": {
        "add": "tenantq.cli.add_command:add",
        "poll": "tenantq.cli.poll_command:poll",
        "ack": "tenantq.cli.settle_command:ack",
        "nack": "tenantq.cli.settle_command:nack",
        "release": "tenantq.cli.settle_command:release",
        "extend": "tenantq.cli.settle_command:extend",
        "redrive": "tenantq.cli.redrive_command:redrive",
        "worker": "tenantq.cli.worker_command:worker",
        "message": "tenantq.cli.message_command:message",
        "queue": "tenantq.cli.queue_command:queue",
    },
    "Tenants and access": {
        "tenant": "tenantq.cli.tenant_command:tenant",
        "key": "tenantq.cli.key_command:key",
        "grant": "tenantq.cli.grant_command:grant",
        "usage": "tenantq.cli.usage_command:usage",
        "encryption": "tenantq.cli.encryption_command:encryption",
        "audit": "tenantq.cli.audit_command:audit",
        "profile": "tenantq.cli.profile_command:profile",
    },
    "Moving": {
        "export": "tenantq.cli.export_command:export",
        "import": "tenantq.cli.import_command:import_",
        "migrate": "tenantq.cli.migrate_command:migrate",
    },
    "Server": {
        "serve": "tenantq.cli.serve_command:serve",
        "doctor": "tenantq.cli.doctor_command:doctor",
        "backup": "tenantq.cli.backup_command:backup",
        "keyring": "tenantq.cli.keyring_command:keyring",
        "topology": "tenantq.cli.topology_command:topology",
        "pipeline": "tenantq.cli.pipeline_command:pipeline",
    },
    "Looking and trying": {
        "console": "tenantq.cli.console_command:console",
        "bench": "tenantq.cli.bench_command:bench",
        "demo": "tenantq.cli.demo_command:demo",
        "completion": "tenantq.cli.completion_command:completion",
    },
}


@click.group(
    cls=LazyGroup,
    places=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(version("tenantq"), prog_name="tenantq", message="%(prog)s %(version)s")
def tenantq() -> None:
    """Run and use a durable work queue for software that serves many tenants."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        _check_utf_8(arguments)
        code = tenantq.main(list(arguments), prog_name="tenantq", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return exit_codes.USAGE
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "tenantq"
        return _refuse(f"{error.format_message()} Try '{where} --help'.", exit_codes.USAGE)
    except click.ClickException as error:
        return _refuse(error.format_message(), exit_codes.ERROR)
    except (click.Abort, KeyboardInterrupt):
        return exit_codes.INTERRUPTED
    except TenantqError as error:
        return _refuse(error_line(error), exit_codes.exit_code(error))
    except BrokenPipeError:
        give_up_stdout()
        return exit_codes.ERROR
    except OSError as error:
        return _refuse(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "), exit_codes.ERROR)
    except Exception as error:  # noqa: BLE001  # the last resort: what nobody has thought of is a line, too
        return _admit(error)
    return code if isinstance(code, int) else exit_codes.OK


def _check_utf_8(arguments: Sequence[str]) -> None:
    """Raise UsageError where an argument or a variable of ours is no text; nothing else could be said of it than that."""
    variables = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("TENANTQ_")]
    for text in (*arguments, *variables):
        try:
            text.encode()
        except UnicodeEncodeError:
            name = text.partition("=")[0] if text in variables else ascii(text[:80])
            raise click.UsageError(f"{name} is not UTF-8. Bytes that are no text can be given on stdin.") from None


def _admit(error: Exception) -> int:
    """Say that an error is the program's own; where it happened goes into a server's log, or is shown on request."""
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    elif logging.getLogger().handlers:
        log.error("this is a bug", exc_info=error)
    told = " ".join(f"{type(error).__name__}: {error}".split())
    return _refuse(f"this is a bug, please report it: {told} ({DEBUG}=1 shows where) [internal]", exit_codes.ERROR)


def error_line(error: TenantqError) -> str:
    """Return an error as people read it, with the code that scripts and searches go by."""
    notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
    return f"{error.message} [{'; '.join([error.code, *notes])}]"


def _refuse(text: str, code: int) -> int:
    click.echo(f"tenantq: {' '.join(text.split())}", err=True)
    return code
