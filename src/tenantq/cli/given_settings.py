"""Settings of tenants and queues as people type them: ``quotas.backlog=10000``, ``lease_ms=5m``, ``ttl_ms=none``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tenantq.domain.formatting import parse_size, parse_value

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        place[last] = parse_value(last, value)
    return settings


def byte_size(text: str) -> int:
    """Return the bytes of an option's value, such as 100, 10KiB or 2GiB. Its name is the metavar."""
    size = parse_size(text)
    if size is None:
        raise click.BadParameter(f"{text[:80]!r} is not a number of bytes such as 100, 10KiB, 5MiB or 2GiB")
    return size
