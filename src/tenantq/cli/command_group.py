"""Commands and groups of commands: their help, and modules that are imported when a command runs."""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import click

_SENTENCE_CHARS_MAX: Final = 200


class ConnectionOption(click.Option):
    """An option that most commands share. Their help lists it in a separate section."""


class Command(click.Command):
    """A command whose help lists its own options first, then those of the connection to a server."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in two sections."""
        found = [one for one in self.get_params(ctx) if isinstance(one, click.Option) and not one.hidden]
        shared = [one for one in found if isinstance(one, ConnectionOption)]
        for heading, part in (("Options", [one for one in found if one not in shared]), ("Connection", shared)):
            if part:
                with formatter.section(heading):
                    formatter.write_dl([help_record(one, ctx) for one in part])


class CommandGroup(click.Group):
    """A group whose help shows a full sentence for each command, under headings if ``sections`` has any.

    ``modules`` maps the names of commands to modules that are imported when the command is used, so that `tenantq add` never
    loads the engine. Each of these modules holds one command of that name.
    """

    command_class = Command

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

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names of the commands defined with the group in their order, then those of ``modules``."""
        return [*self.commands, *self._modules]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if it is unknown."""
        if cmd_name not in self._modules:
            return super().get_command(ctx, cmd_name)
        found = vars(import_module(self._modules[cmd_name])).values()
        return next(one for one in found if isinstance(one, click.Command) and one.name == cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name. Raises UsageError with similar names if it is unknown."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:  # it knows the commands that are already imported
            raise click.exceptions.NoSuchCommand(args[0], possibilities=self.list_commands(ctx), ctx=ctx) from error


def help_record(option: click.Option, ctx: click.Context) -> tuple[str, str]:
    """Return the names of an option and its help, with the default. Ranges are words, and all facts are in one pair of brackets."""
    ctx.show_default = True
    record = option.get_help_record(ctx)
    assert record is not None
    names, text = record
    text = re.sub(r"([\d.]+)<=x<=([\d.]+)", r"\1 to \2", text)
    text = re.sub(r"x>=([\d.]+)", r"at least \1", text)
    return names, text.replace('  [default: ""]', "").replace("]  [", "; ")
