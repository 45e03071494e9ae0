"""The command line: all commands, and one line on stderr for every error."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.command_group import CommandGroup
from tenantq.cli.standard_streams import give_up_stdout
from tenantq.errors import TenantqError

log = logging.getLogger("tenantq")

DEBUG: Final = "TENANTQ_DEBUG"
"""The environment variable that shows tracebacks of bugs."""

_SECTIONS: Final = {
    "Messages": ("add", "poll", "ack", "nack", "release", "extend", "redrive", "worker", "workers", "message", "queue"),
    "Tenants and access": (
        "whoami", "tenant", "signup", "template", "key", "grant", "usage", "encryption", "audit", "alert",
        "compliance", "containment", "profile",
    ),
    "Move data": ("export", "import", "migrate", "migrate-from"),
    "Server": ("serve", "doctor", "backup", "keyring", "topology", "cluster", "pipeline"),
    "Explore and measure": ("console", "bench", "demo", "completion"),
}  # fmt: skip
_MODULES: Final = {
    **dict.fromkeys(("ack", "nack", "release", "extend"), "settle"),
    "import": "import_",
    "migrate-from": "migrate_from",
}
"""The modules of commands whose module is not named after the command."""


@click.group(
    cls=CommandGroup,
    modules={name: f"tenantq.cli.commands.{_MODULES.get(name, name)}" for part in _SECTIONS.values() for name in part},
    sections=_SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(version("tenantq"), prog_name="tenantq", message="%(prog)s %(version)s")
def tenantq() -> None:
    """Run and use a durable work queue for software that serves many tenants.

    Try it with 'tenantq demo', or start a server with 'tenantq serve'. Most other commands talk to a server. Give its URL
    and token after the command ('tenantq queue list --url URL --token TOKEN'), set TENANTQ_URL and TENANTQ_TOKEN, or
    store them once with 'tenantq profile add'.

    A DURATION is a number with a unit, such as 250ms, 30s, 5m, 1h30m, 7d or 1w. Without a unit it means milliseconds.

    \b
    Exit codes:
      0  done
      1  failed
      2  wrong usage
      3  not found
      4  the token lacks permission
      5  refused by a rate limit or quota
      6  the server or store is unavailable
      7  conflict with the current state
    """  # noqa: D301  # \b is click's mark for lines that stay as they are


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
        text = error.format_message().rstrip()
        end = "" if text.endswith((".", "?", "!")) else "."
        return _print_error(f"{text}{end} Try '{where} --help'.", exit_codes.USAGE)
    except click.ClickException as error:
        return _print_error(error.format_message(), exit_codes.ERROR)
    except (click.Abort, KeyboardInterrupt):
        return exit_codes.INTERRUPTED
    except TenantqError as error:
        return _print_error(error_line(error), exit_codes.exit_code(error))
    except BrokenPipeError:
        give_up_stdout()
        return exit_codes.ERROR
    except OSError as error:
        return _print_error(f"{error.filename or ''}: {error.strerror or error}".removeprefix(": "), exit_codes.ERROR)
    except Exception as error:  # noqa: BLE001  # an unexpected error is one line, too
        return _report_bug(error)
    return code if isinstance(code, int) else exit_codes.OK


def _check_utf_8(arguments: Sequence[str]) -> None:
    """Raise UsageError if an argument or a TENANTQ_ variable is not UTF-8."""
    variables = [f"{name}={value}" for name, value in os.environ.items() if name.startswith("TENANTQ_")]
    for text in (*arguments, *variables):
        try:
            text.encode()
        except UnicodeEncodeError:
            name = text.partition("=")[0] if text in variables else ascii(text[:80])
            raise click.UsageError(f"{name} is not valid UTF-8. Pass binary data on stdin.") from None


def _report_bug(error: Exception) -> int:
    """Report a bug. The traceback goes to a server's log, or to stderr on request."""
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    elif logging.getLogger().handlers:
        log.error("internal error", exc_info=error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return _print_error(
        f"internal error, please report it: {text} (set {DEBUG}=1 for a traceback) [internal]", exit_codes.ERROR
    )


def error_line(error: TenantqError) -> str:
    """Return the message of an error with its code."""
    notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
    return f"{error.message} [{'; '.join([error.code, *notes])}]"


def _print_error(text: str, code: int) -> int:
    click.echo(f"tenantq: {' '.join(text.split())}", err=True)
    return code
