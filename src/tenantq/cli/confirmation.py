"""Confirmation before data is destroyed: the user types its name, and a reason for the journal."""

import sys

import click

from tenantq.cli.options import options
from tenantq.domain import limits

destroys = options(
    click.option("--yes", is_flag=True, help="Skip the confirmation prompt; requires --reason."),
    click.option("--reason", metavar="TEXT", help="Reason for the journal, at least 10 characters."),
)
"""Add the options of ``confirmed_reason`` to a command."""


def confirmed_reason(what: str, name: str, *, yes: bool, reason: str | None) -> str:
    """Return the reason after the user typed the name to confirm, or gave ``--yes``. Otherwise end the command."""
    if yes and reason is None:
        raise click.UsageError("--yes requires --reason.")
    if not yes:
        confirm(what, name, instead="--yes and --reason")
    if reason is None:
        reason = str(click.prompt(f"Reason ({limits.REASON_CHARS_MIN} characters at least)", err=True))
    return reason


def confirm(what: str, name: str, *, instead: str = "--yes") -> None:
    """Return after the user typed the name to confirm. Otherwise end the command. Scripts give ``instead``."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"No terminal to ask for confirmation. Give {instead}.")
    click.echo(f"{what}. This cannot be undone.", err=True)
    typed = click.prompt("Type its name to continue", default="", show_default=False, err=True)
    if typed != name:
        raise click.ClickException("the name does not match; nothing was changed")
