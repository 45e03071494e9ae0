"""Asking before something is destroyed: its name, and where there is a journal, a reason that goes into it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tenantq.domain import limits

if TYPE_CHECKING:
    from collections.abc import Callable


def destroys(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options ``--yes`` and ``--reason``."""
    command = click.option("--reason", metavar="TEXT", help="Why; ten characters or more, kept in the journal.")(
        command
    )
    return click.option("--yes", is_flag=True, help="Do not ask; --reason must be given.")(command)


def confirmed_reason(what: str, name: str, *, yes: bool, reason: str | None) -> str:
    """Return the reason once the name of what is to go was typed, or ``--yes`` given; else end the command."""
    if yes and reason is None:
        raise click.UsageError("--yes needs --reason.")
    if not yes:
        confirm(what, name, instead="--yes and --reason")
        if reason is None:
            reason = str(click.prompt(f"Reason ({limits.REASON_CHARS_MIN} characters or more)", err=True))
    assert reason is not None
    return reason


def confirm(what: str, name: str, *, instead: str = "--yes") -> None:
    """Return once the name of what is to go was typed; else end the command. ``instead`` is to be given where nobody can be asked."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"Nobody can be asked here: give {instead}.")
    click.echo(f"{what}. This cannot be undone.", err=True)
    typed = click.prompt("Type its name to go on", default="", show_default=False, err=True)
    if typed != name:
        raise click.ClickException("that is not its name; nothing was changed")
