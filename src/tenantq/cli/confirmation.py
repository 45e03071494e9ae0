"""Asking before something is destroyed: its name, and a reason that goes into the journal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from tenantq import limits

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
        if not sys.stdin.isatty():
            raise click.UsageError("Nobody can be asked here: give --yes and --reason.")
        click.echo(f"{what}. This cannot be undone.", err=True)
        typed = click.prompt("Type its name to go on", default="", show_default=False, err=True)
        if typed != name:
            raise click.ClickException("that is not its name; nothing was changed")
        if reason is None:
            reason = str(click.prompt(f"Reason ({limits.REASON_CHARS_MIN} characters or more)", err=True))
    assert reason is not None
    return reason
