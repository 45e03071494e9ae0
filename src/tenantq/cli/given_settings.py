"""Settings of tenants and queues as people type them: ``quotas.backlog=10000``, ``lease_ms=5m``, ``ttl_ms=none``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import click

from tenantq.cli.durations import parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

_WORDS: Final[dict[str, bool | None]] = {"none": None, "null": None, "true": True, "false": False}
_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_BYTES: Final = re.compile(r"(\d+)(KiB|MiB|GiB|TiB)")
_LISTS: Final = {"regions", "secret_attributes"}

set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any setting, a dot before the inner name. Values: numbers, 5m, 10MiB, true, false, none, text.",
)


def parse_settings(given: Iterable[str]) -> dict[str, Any]:
    """Return ``NAME=VALUE`` texts as nested settings; whether there are such settings is for the server to say."""
    settings: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{text[:80]!r} is not NAME=VALUE", param_hint="--set")
        place: Any = settings
        *sections, last = name.split(".")
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise click.BadParameter(f"{section} is given as a value and as a group", param_hint="--set")
        place[last] = _value(last, value)
    return settings


def byte_size(text: str) -> int:
    """Return the bytes of an option's value, such as 100, 10KiB or 2GiB. Its name is the metavar."""
    if text.isascii() and text.isdigit():
        return int(text)
    size = _BYTES.fullmatch(text)
    if size is None:
        raise click.BadParameter(f"{text[:80]!r} is not a number of bytes such as 100, 10KiB, 5MiB or 2GiB")
    return int(size[1]) * _UNITS[size[2]]


def _value(name: str, text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if name in _LISTS:
        return [part for part in text.split(",") if part]
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if name.endswith("_ms") and (length := parse_duration(text)) is not None:
        return length
    return byte_size(text) if _BYTES.fullmatch(text) is not None else text
