"""The entry point: commands, and every user error as one line on stderr."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

import click

from tenantq.cli.demo_command import demo
from tenantq.cli.doctor_command import doctor
from tenantq.errors import TenantqError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_CANNOT: Final = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("tenantq"), prog_name="tenantq", message="%(prog)s %(version)s")
def tenantq() -> None:
    """Run and examine a durable work queue for software that serves many tenants."""


tenantq.add_command(demo)
tenantq.add_command(doctor)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = tenantq.main(list(arguments), prog_name="tenantq", standalone_mode=False)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "tenantq"
        return _refuse(f"{error.format_message()} Try '{where} --help'.")
    except click.ClickException as error:
        return _refuse(error.format_message())
    except click.Abort:
        return 130
    except TenantqError as error:
        return _refuse(error.message)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more to say at exit either
        return 1
    except OSError as error:
        return _refuse(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "))
    return code if isinstance(code, int) else 0


def _refuse(text: str) -> int:
    click.echo(f"tenantq: {' '.join(text.split())}", err=True)
    return EXIT_CANNOT


def main() -> None:
    """Run the command line."""
    sys.exit(run(sys.argv[1:]))
