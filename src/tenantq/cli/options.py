"""Options that several commands share, and the types of their values."""

import functools
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import click

from tenantq.domain.access import ROLES
from tenantq.domain.formatting import parse_duration, parse_size, parse_value
from tenantq.runtime.clock import SystemClock

R = TypeVar("R")
Function = Callable[..., R]


class Count(click.IntRange):
    """A whole number in a range, shown as N in the help."""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002  # as click declares it
        return "N"


FILE: Final = click.Path(path_type=Path, dir_okay=False)
DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)
LOG_LEVEL: Final = click.Choice(["debug", "info", "warning", "error"])
LOG_FORMAT: Final = click.Choice(["text", "json"])


def options(*given: Callable[[Function[R]], Function[R]]) -> Callable[[Function[R]], Function[R]]:
    """Return a decorator that adds several options to a command, in the order of the help."""

    def add(command: Function[R]) -> Function[R]:
        for option in reversed(given):
            command = option(command)
        return command

    return add


# ---- values: a function is a type to click, and its name is the metavar ----


def duration(text: str) -> int:
    """Return a duration in milliseconds."""
    ms = parse_duration(text)
    if ms is None:
        raise click.BadParameter(f"{text!r} is not a duration such as 30s, 5m, 1h30m, 1w, 250ms, or 250 (milliseconds)")
    return ms


def time_ago(text: str) -> int:
    """Return the wall-clock milliseconds of an ISO 8601 time, or of a duration before now."""
    return _time(text, -1, "ago")


def time_ahead(text: str) -> int:
    """Return the wall-clock milliseconds of an ISO 8601 time, or of a duration from now. Refuses the past."""
    ms = _time(text, 1, "from now")
    if ms <= SystemClock().wall_ms():
        raise click.BadParameter(f"{text!r} is in the past; give a future time")
    return ms


def _time(text: str, sign: Literal[-1, 1], direction: str) -> int:
    length = parse_duration(text)
    if length is not None and not text.strip().isdigit():
        return SystemClock().wall_ms() + sign * length
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        example = "2030-01-31, 2030-01-31T12:00:00Z"
        raise click.BadParameter(f"{text!r} is not a time such as {example}, or 2h ({direction})") from error
    return int((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1_000)


def byte_size(text: str) -> int:
    """Return a number of bytes, such as 100, 10KiB or 2GiB."""
    size = parse_size(text)
    if size is None:
        raise click.BadParameter(f"{text[:80]!r} is not a number of bytes such as 100, 10KiB, 5MiB or 2GiB")
    return size


def split_pair(text: str, option: str) -> tuple[str, str]:
    """Return the two sides of ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.BadParameter(f"{text[:80]!r} is not NAME=VALUE", param_hint=option)
    return name, value


def parse_settings(given: Iterable[str]) -> dict[str, Any]:
    """Return ``NAME=VALUE`` texts as nested settings. The server decides whether the settings exist."""
    settings: dict[str, Any] = {}
    for text in given:
        name, value = split_pair(text, "--set")
        section: Any = settings
        *sections, last = name.split(".")
        for part in sections:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise click.BadParameter(f"{part} is set both as a value and as a group", param_hint="--set")
        section[last] = parse_value(last, value)
    return settings


def shards_by_region(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    """Return the shards to add per region from ``REGION=N`` texts."""
    found: dict[str, int] = {}
    for text in given:
        region, _equals, number = text.partition("=")
        if not region or not number.isdecimal() or int(number) < 1:
            raise click.BadParameter(f"{text!r} is not REGION=SHARDS, such as us-east=4")
        found[region] = found.get(region, 0) + int(number)
    return found


# ---- options ----

data_dir = click.option("--data-dir", type=DIRECTORY, default="./tenantq-data", envvar="TENANTQ_DATA_DIR", show_envvar=True, metavar="DIR", help="Data directory.")  # fmt: skip
server_options = options(
    click.option("--data-dir", type=click.Path(file_okay=False), metavar="DIR", help="Data directory, created if missing.  [env var: TENANTQ_DATA_DIR; default: ./tenantq-data]"),
    click.option("--http", metavar="HOST:PORT", help="HTTP address; port 0 picks a free port.  [env var: TENANTQ_HTTP; default: 127.0.0.1:7070]"),
)  # fmt: skip
"""Add the options of commands that start a server. Its settings have the defaults."""


name_argument = click.argument("name")
_ROLE_MEANINGS: Final = {
    "platform-admin": "everything, in all tenants",
    "tenant-admin": "everything in the tenant",
    "operator": "manage queues and messages",
    "producer": "add messages",
    "consumer": "poll and ack messages",
    "auditor": "read the audit trail",
    "viewer": "read all but bodies",
}
_ROLE_HELP: Final = "; ".join(f"{role}: {_ROLE_MEANINGS[role]}" for role in ROLES)
grant_options = options(
    click.option("--role", type=click.Choice(ROLES), metavar="ROLE", help=f"{_ROLE_HELP}."),
    click.option("--action", "actions", multiple=True, metavar="ACTION", help="Single action, such as peek, instead of a role; repeatable."),
    click.option("--queue", "queues", multiple=True, metavar="PATTERN", help="Limit to queues whose name matches, with * and ? as wildcards; repeatable.  [default: all]"),
    click.option("--expires", "expires_at", type=time_ahead, metavar="TIME", help="Expiry time: 2030-01-31, or 30d (from now)."),
)  # fmt: skip
"""Add the options that say what a key or grant allows."""


def grant_of(
    *, role: str | None, actions: tuple[str, ...], queues: tuple[str, ...], expires_at: int | None
) -> dict[str, Any]:
    """Return what the options of ``grant_options`` allow, as the SDK expects it."""
    if role is None and not actions:
        raise click.UsageError("Give --role or --action.")
    return {"role": role, "actions": actions, "queues": queues or ("*",), "expires_at": expires_at}


def setting_options(example: str, **own: Callable[[Function[R]], Function[R]]) -> Callable[[Function[R]], Function[R]]:
    """Return a decorator that adds options for single settings and ``--set`` to a command, and passes them on as ``changes``.

    The keys of ``own`` are the names of the settings. An option that is not given is not a change.
    """
    help = f"Any setting that `show` lists, such as {example}; repeatable. VALUE is a number, 5m, 10MiB, true, false, none or text."
    any_setting: Callable[[Function[R]], Function[R]] = click.option(
        "--set", "settings", multiple=True, metavar="NAME=VALUE", help=help
    )

    def decorate(command: Function[R]) -> Function[R]:
        @functools.wraps(command)
        def setting(*args: Any, settings: tuple[str, ...], **rest: Any) -> R:
            given = {name: value for name in own if (value := rest.pop(name)) is not None}
            return command(*args, changes=parse_settings(settings) | given, **rest)

        return options(*own.values(), any_setting)(setting)

    return decorate
