"""Groups of commands: their help, and modules that are loaded when a command is used: `tenantq add` never loads the engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_SENTENCE_CHARS_MAX: Final = 200


class CommandGroup(click.Group):
    """Its help says in a whole sentence what each command does, however narrow the terminal."""

    def sections(self, ctx: click.Context) -> Iterable[tuple[str, Collection[str]]]:
        """Return under which headings the commands stand."""
        return [("Commands", self.list_commands(ctx))]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their sentences, wrapped."""
        for heading, names in self.sections(ctx):
            commands = ((name, self.get_command(ctx, name)) for name in names)
            rows = [(name, one.get_short_help_str(_SENTENCE_CHARS_MAX)) for name, one in commands if one is not None]
            with formatter.section(heading):
                formatter.write_dl(rows)


class LazyGroup(CommandGroup):
    """Knows its commands by name and the place they are at, ``module:attribute``, under headings where they are many."""

    def __init__(self, *args: Any, places: Mapping[str, str] | Mapping[str, Mapping[str, str]], **options: Any) -> None:
        super().__init__(*args, **options)
        self._headings = {heading: tuple(part) for heading, part in places.items() if not isinstance(part, str)}
        self._places: dict[str, str] = {}
        for name, place in places.items():
            self._places |= {name: place} if isinstance(place, str) else place

    def sections(self, ctx: click.Context) -> Iterable[tuple[str, Collection[str]]]:
        """Return the headings that were given, with their commands."""
        return self._headings.items() or super().sections(ctx)

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
