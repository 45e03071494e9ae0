"""Durations, times, sizes and text in the form that people read and type."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, overload

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+")
_WORDS: Final[dict[str, bool | None]] = {"none": None, "null": None, "true": True, "false": False}
_UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_BYTES: Final = re.compile(r"(\d+)(KiB|MiB|GiB|TiB)")
_LISTS: Final = {"regions", "secret_attributes", "targets"}
_UNPRINTABLE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    r"\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control characters and invisible format characters. They could move the cursor, color the terminal or reverse text."""


def parse_duration(text: str) -> int | None:
    """Return the milliseconds of ``30s``, ``5m``, ``1h30m``, ``1.5d``, ``1w``, ``250ms`` or ``250``, or None for other text."""
    text = text.strip().lower()
    if len(text) > 40 or not text.isascii():
        return None
    if text.isdigit():
        return int(text)
    if _WHOLE.fullmatch(text) is None:
        return None
    return round(sum(float(number) * _UNIT_MS[unit] for number, unit in _PART.findall(text)))


def show_duration(ms: int) -> str:
    """Return a duration such as ``1h30m``, exact to the millisecond."""
    if ms < 1_000:
        return f"{ms}ms"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, ms = divmod(ms, _UNIT_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


@overload
def show_time(ms: int) -> str: ...


@overload
def show_time(ms: None) -> None: ...


def show_time(ms: int | None) -> str | None:
    """Return a wall-clock time as ISO 8601 in UTC, or None for None."""
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plural(number: int, noun: str) -> str:
    """Return a number and its noun: ``1 message``, ``2,000 messages``."""
    return f"{number:,} {noun if number == 1 else f'{noun}s'}"


def show_age(ms: int) -> str:
    """Return an age rounded down to its largest units."""
    if ms < 10_000:
        return show_duration(ms)
    unit = 1_000 if ms < 3_600_000 else 60_000 if ms < 86_400_000 else 3_600_000
    return show_duration(ms - ms % unit)


def parse_value(name: str, text: str) -> Any:
    """Return the value of a setting as typed: a number, ``5m``, ``10MiB``, ``true``, ``none``, a list, or text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if name in _LISTS:
        return [part for part in text.split(",") if part]
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if name.endswith("_ms") and (length := parse_duration(text)) is not None:
        return length
    size = parse_size(text)
    return text if size is None else size


def dotted(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the names and values of settings. Names of nested ones are dotted."""
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            yield from dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def nested(settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return settings with dotted names as nested mappings, the reverse of ``dotted``."""
    found: dict[str, Any] = {}
    for name, value in settings:
        section = found
        *sections, last = name.split(".")
        for part in sections:
            section = section.setdefault(part, {})
        section[last] = value
    return found


def parse_size(text: str) -> int | None:
    """Return the bytes of ``100``, ``10KiB`` or ``2GiB``, or None for other text."""
    if text.isascii() and text.isdigit():
        return int(text)
    size = _BYTES.fullmatch(text)
    return int(size[1]) * _UNITS[size[2]] if size is not None else None


def show_size(count: int) -> str:
    """Return a number of bytes with a binary unit."""
    if count < 1_024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1_024
        if value < 999.5:
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    return f"{value / 1_024:.1f} TiB"


def printable(text: str) -> str:
    """Return ``text`` with control and format characters replaced, so that it is safe to print."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def preview(body: bytes, chars: int = 60) -> str:
    """Return the start of a body on one line, for a table."""
    text = " ".join(printable(body[: 4 * chars].decode(errors="replace")).split())
    return text if len(text) <= chars and len(body) <= 4 * chars else f"{text[: chars - 1]}…"
