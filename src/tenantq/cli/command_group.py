"""Groups of commands: full sentences in their help, and modules that are imported when a command runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import click

_SENTENCE_CHARS_MAX: Final = 200


class CommandGroup(click.Group):
    """A group whose help shows a full sentence for each command, under headings if ``sections`` has any.

    ``modules`` maps the names of commands to modules that are imported when the command is used, so that `tenantq add` never
    loads the engine. Each of these modules holds one command of that name.
    """

    def __init__(
        self,
        *args: Any,
        modules: Mapping[str, str] | None = None,
        sections: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._modules = modules or {}
        self._sections = sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands and their sentences, wrapped to the width of the terminal."""
        for heading, names in (self._sections or {"Commands": self.list_commands(ctx)}).items():
            commands = ((name, self.get_command(ctx, name)) for name in names)
            rows = [(name, one.get_short_help_str(_SENTENCE_CHARS_MAX)) for name, one in commands if one is not None]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of ``modules``, then those of the commands defined with the group."""
        return [*self._modules, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if it is unknown."""
        if cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        found = vars(import_module(self._modules[cmd_name])).values()
        return next(one for one in found if isinstance(one, click.Command) and one.name == cmd_name)
