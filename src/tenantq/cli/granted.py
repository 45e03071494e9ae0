"""The options that say what somebody may do, for keys and grants alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tenantq.cli.durations import time_ahead
from tenantq.domain.access import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable


def grant_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--role``, ``--action``, ``--queue`` and ``--expires``."""
    for option in (
        click.option("--expires", "expires_at", type=time_ahead, metavar="TIME", help="When it ends: 2030-01-31, or 30d (from now)."),
        click.option("--queue", "queues", multiple=True, metavar="PATTERN", help="Only these queues, * and ? as wildcards; repeatable.  [default: all]"),
        click.option("--action", "actions", multiple=True, metavar="ACTION", help="A single action, such as peek; repeatable."),
        click.option("--role", type=click.Choice(ROLES), metavar="ROLE", help=f"One of {', '.join(ROLES)}."),
    ):  # fmt: skip
        command = option(command)
    return command


def given_grant(role: str | None, actions: tuple[str, ...], queues: tuple[str, ...]) -> dict[str, Any]:
    """Return what the client's calls take, or end the command where nothing is granted."""
    if role is None and not actions:
        raise click.UsageError("Say what is allowed with --role or --action.")
    return {"role": role, "actions": actions, "queues": queues or ("*",)}
