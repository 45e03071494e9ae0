"""Audit events in export formats."""

from __future__ import annotations

import csv
import io

import pytest

from tenantq.errors import Invalid
from tenantq.journal.audit_event import audit_event
from tenantq.journal.audit_formats import audit_format
from tenantq.journal.record import JournalRow


def row(**fields: object) -> JournalRow:
    """Return a row."""
    plain: dict[str, object] = dict.fromkeys(JournalRow.__struct_fields__, "")
    numbers = dict.fromkeys(("seq", "n", "ts", "bytes", "priority", "attempt", "wait_ms", "process_ms", "count"), 1)
    return JournalRow(**{**plain, **numbers, "shard": "0", "outcome": "ok", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", " =", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_cells_that_look_like_formulas_are_escaped(start: str) -> None:
    """In every field whose text a caller chooses."""
    text = f'{start}HYPERLINK("http://evil")'
    event = audit_event(row(details=text, user_agent=text, principal=text, remote=text, request_id=text, queue=text))
    file = audit_format("csv")
    told = (file.start() + file.add([event]) + file.end()).decode()
    (line,) = csv.DictReader(io.StringIO(told, newline=""))
    for name in ("details", "user_agent", "principal", "remote", "request_id", "queue"):
        assert line[name] == f"'{text}"
    assert all(not cell.startswith(("=", "+", "-", "@")) for cell in line.values())
    assert line["time"] == "1970-01-01T00:00:00.001Z"


def test_a_cell_has_no_line_breaks_or_control_characters() -> None:
    """Printed line by line, the file has one event per line and no terminal escape codes."""
    text = "a\r\nb\tc\x1b[31m\0\u202e\u2028\x85d"
    file = audit_format("csv")
    told = file.add([audit_event(row(details=text, user_agent=text))]).decode()
    assert told.count("\n") == told.count("\r") == len(told.splitlines()) == 1
    assert told.count("a b c\ufffd[31m\ufffd\ufffd  d") == 2


def test_the_object_of_a_row_is_a_path() -> None:
    """From the platform down to a message."""
    about = [
        audit_event(row(**fields))["resource"]
        for fields in (
            {},
            {"tenant": "acme"},
            {"tenant": "acme", "queue": "q"},
            {"tenant": "acme", "queue": "q", "message_id": "m"},
        )
    ]
    assert about == ["platform", "tenants/acme", "tenants/acme/queues/q", "tenants/acme/queues/q/messages/m"]


def test_an_unknown_format_is_refused() -> None:
    """The error lists the known formats."""
    with pytest.raises(Invalid, match="jsonl, csv, parquet"):
        audit_format("xml")
