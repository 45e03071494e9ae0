"""Rows of messages, and the full text about one message."""

import contextlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tenantq.client import StoredMessage
from tenantq.console.not_granted import NOT_GRANTED_TEXT, NotGranted
from tenantq.console.table import Cell, Column, Row, count_cell, minute_of, row_of, second_of, text_cell
from tenantq.domain.formatting import preview, printable, show_age, show_size

MESSAGE_COLUMNS: Final = (
    Column("id", "id", 13, 1, lambda one, _: Cell(one.id), width_max=36, keeps_end=True),
    Column("state", "state", 9, 2, lambda one, _: Cell(one.state.replace("_", " "), "" if one.state == "ready" else "dim")),
    Column("priority", "prio", 4, 4, lambda one, _: count_cell(one.priority), right=True),
    Column("attempts", "attempts", 8, 3, lambda one, _: count_cell(one.attempts, "warning"), right=True),
    Column("age", "age", 7, 5, lambda one, now_ms: Cell(show_age(max(0, now_ms - one.added_at))), right=True),
    Column("size", "size", 9, 6, lambda one, _: Cell(show_size(one.size)), right=True),
    Column("body", "body", 16, 0, lambda one, _: _body_cell(one), width_max=60),
)  # fmt: skip
DEAD_COLUMNS: Final = (
    Column("id", "id", 13, 2, lambda one: Cell(one.id), width_max=36, keeps_end=True),
    Column("at", "since (UTC)", 16, 3, lambda one: text_cell(one.dead and minute_of(one.dead.at))),
    Column("source", "source", 12, 4, lambda one: text_cell(one.dead and one.dead.source), width_max=24),
    Column("attempts", "attempts", 8, 1, lambda one: Cell(str((one.dead or one).attempts)), right=True),
    Column("reason", "reason", 16, 0, lambda one: text_cell(one.dead and printable(one.dead.reason)), width_max=50),
    Column("history", "history", 20, 5, lambda one: Cell(printable("; ".join(f"{entry.attempt}: {entry.outcome}" for entry in one.history)), "dim"), width_max=60),
)  # fmt: skip
HIDDEN: Final = "(hidden: this role cannot read bodies)"
_BODY_CHARS_MAX: Final = 16_384
_PREVIEW_CHARS: Final = 120


def message_rows(messages: Sequence[StoredMessage], now_ms: int) -> list[Row]:
    """Return the rows of waiting messages, in order of delivery."""
    return [row_of(MESSAGE_COLUMNS, one.id, one, now_ms) for one in messages]


def dead_rows(messages: Sequence[StoredMessage]) -> list[Row]:
    """Return the rows of dead letters: reason, source, and the outcome of each delivery."""
    return [row_of(DEAD_COLUMNS, one.id, one) for one in messages]


def message_text(message: StoredMessage, trace: Sequence[dict[str, Any]] | NotGranted) -> str:
    """Return everything known about a message: facts, history, body, trace."""
    times = {"visible": message.visible_at, "expires": message.expires_at, "leased until": message.lease_until}
    facts: list[tuple[str, str]] = [
        ("id", message.id),
        ("queue", f"{message.tenant} / {message.queue}"),
        ("state", message.state.replace("_", " ")),
        ("priority", str(message.priority)),
        ("attempts", f"{message.attempts} of {message.max_attempts or 'any number'}"),
        ("added", second_of(message.added_at)),
        *((name, second_of(ms)) for name, ms in times.items() if ms is not None),
        *([("group", printable(message.group))] if message.group is not None else []),
        ("size", f"{show_size(message.size)}{', encrypted at rest' if message.encrypted else ''}"),
        *((f"attribute {printable(name)}", printable(value)) for name, value in message.attributes.items()),
    ]
    if message.dead is not None:
        facts.append(
            (
                "dead letter",
                f"{printable(message.dead.reason)}; from {message.dead.source}, {second_of(message.dead.at)}",
            )
        )
    width = max(len(name) for name, _ in facts)
    parts = ["\n".join(f"{name:{width}}  {value}" for name, value in facts)]
    if message.history:
        ends = [
            f"  attempt {one.attempt}  {second_of(one.at)}  {one.outcome}  {printable(one.reason)}".rstrip()
            for one in message.history
        ]
        parts.append("Deliveries\n" + "\n".join(ends))
    parts.append(f"Body\n{_indented(body_text(message))}")
    parts.append(f"Trace\n{_indented(trace_text(trace))}")
    return "\n\n".join(parts)


def body_text(message: StoredMessage) -> str:
    """Return a body as text: JSON is indented, unprintable characters are replaced."""
    if message.hidden:
        return HIDDEN
    if message.body_error is not None:
        return f"({message.body_error})"
    if not message.body:
        return "(empty)"
    text = message.body.decode(errors="replace")
    if text.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(msgspec.DecodeError):
            text = msgspec.json.format(message.body, indent=2).decode()
    shown = printable(text[:_BODY_CHARS_MAX])
    left = len(text) - _BODY_CHARS_MAX
    return f"{shown}\n… and {left:,} more characters" if left > 0 else shown


def trace_text(trace: Sequence[dict[str, Any]] | NotGranted) -> str:
    """Return the journal rows about a message, oldest first."""
    if isinstance(trace, NotGranted):
        return NOT_GRANTED_TEXT
    lines: list[str] = []
    for row in trace:
        parts = [second_of(int(row.get("ts") or 0)), f"{row.get('op', ''):12}", f"{row.get('outcome', ''):9}"]
        parts += [str(row.get("principal") or ""), printable(str(row.get("details") or ""))]
        lines.append("  ".join(part for part in parts if part))
    return "\n".join(lines) or "no journal rows"


def _body_cell(message: StoredMessage) -> Cell:
    if message.hidden:
        return Cell("(hidden)", "dim")
    if message.body_error is not None:
        return Cell(f"({message.body_error})", "critical")
    return Cell(preview(message.body, _PREVIEW_CHARS))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
