"""Lengths and points of time as people type them, in milliseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, Literal

import click

from tenantq.clock import SystemClock

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(text: str) -> int | None:
    """Return the milliseconds of ``30s``, ``5m``, ``1h30m``, ``1.5d``, ``250ms`` or ``250``; None: it is none of these."""
    text = text.strip().lower()
    if len(text) > 40 or not text.isascii():
        return None
    if text.isdigit():
        return int(text)
    if _WHOLE.fullmatch(text) is None:
        return None
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text)))


def show_duration(ms: int) -> str:
    """Return a length of time in the units people read, exact to the millisecond."""
    if ms < 1_000:
        return f"{ms}ms"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, ms = divmod(ms, _UNIT_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def show_moment(ms: int) -> str:
    """Return a point of time as ISO 8601 in UTC."""
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration(text: str) -> int:
    """Return the milliseconds of an option's value. A plain function is a type to click, and its name the metavar."""
    ms = parse_duration(text)
    if ms is None:
        raise click.BadParameter(f"{text!r} is not a duration such as 30s, 5m, 1h30m, 250ms, or 250 (milliseconds)")
    return ms


def time_ago(text: str) -> int:
    """Return the wall clock's milliseconds of ISO 8601 text, or of a duration before now."""
    return _moment(text, -1, "ago")


def time_ahead(text: str) -> int:
    """Return the wall clock's milliseconds of ISO 8601 text, or of a duration from now."""
    return _moment(text, 1, "from now")


def _moment(text: str, sign: Literal[-1, 1], direction: str) -> int:
    length = parse_duration(text)
    if length is not None and not text.strip().isdigit():
        return SystemClock().wall_ms() + sign * length
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        example = "2030-01-31, 2030-01-31T12:00:00Z"
        raise click.BadParameter(f"{text!r} is not a time such as {example}, or 2h ({direction})") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000)
