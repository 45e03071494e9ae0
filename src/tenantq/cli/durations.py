"""Lengths and points of time as people type them, in milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

import click

from tenantq.domain.formatting import parse_duration
from tenantq.runtime.clock import SystemClock


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
    """Return the wall clock's milliseconds of ISO 8601 text, or of a duration from now. What is over already is refused."""
    moment = _moment(text, 1, "from now")
    if moment <= SystemClock().wall_ms():
        raise click.BadParameter(f"{text!r} is in the past; give a time that is still to come")
    return moment


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
