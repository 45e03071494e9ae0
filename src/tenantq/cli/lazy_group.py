"""A group of commands whose modules are loaded when a command is used: `tenantq add` never loads the engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping


class LazyGroup(click.Group):
    """Knows its commands by name and the place they are at: ``module:attribute``."""

    def __init__(self, *args: Any, places: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order they were given."""
        return [*self._places, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, loaded; None: there is no such command."""
        place = self._places.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command
