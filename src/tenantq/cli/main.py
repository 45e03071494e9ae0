"""The entry point: commands, and every user error as one line on stderr."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.lazy_group import LazyGroup
from tenantq.errors import TenantqError

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS: Final = {
    "serve": "tenantq.cli.serve_command:serve",
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
    "tenant": "tenantq.cli.tenant_command:tenant",
    "key": "tenantq.cli.key_command:key",
    "grant": "tenantq.cli.grant_command:grant",
    "usage": "tenantq.cli.usage_command:usage",
    "encryption": "tenantq.cli.encryption_command:encryption",
    "keyring": "tenantq.cli.keyring_command:keyring",
    "audit": "tenantq.cli.audit_command:audit",
    "profile": "tenantq.cli.profile_command:profile",
    "completion": "tenantq.cli.completion_command:completion",
    "export": "tenantq.cli.export_command:export",
    "import": "tenantq.cli.import_command:import_",
    "migrate": "tenantq.cli.migrate_command:migrate",
    "topology": "tenantq.cli.topology_command:topology",
    "backup": "tenantq.cli.backup_command:backup",
    "doctor": "tenantq.cli.doctor_command:doctor",
    "pipeline": "tenantq.cli.pipeline_command:pipeline",
    "bench": "tenantq.cli.bench_command:bench",
    "demo": "tenantq.cli.demo_command:demo",
    "console": "tenantq.cli.console_command:console",
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
        code = tenantq.main(list(arguments), prog_name="tenantq", standalone_mode=False)
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more to say at exit either
        return exit_codes.ERROR
    except OSError as error:
        return _refuse(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "), exit_codes.ERROR)
    return code if isinstance(code, int) else exit_codes.OK


def error_line(error: TenantqError) -> str:
    """Return an error as people read it, with the code that scripts and searches go by."""
    notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
    return f"{error.message} [{'; '.join([error.code, *notes])}]"


def _refuse(text: str, code: int) -> int:
    click.echo(f"tenantq: {' '.join(text.split())}", err=True)
    return code


def main() -> None:
    """Run the command line."""
    sys.exit(run(sys.argv[1:]))
