"""Audit queries over several shards: the pages of all shards as one page, and the cursors of all shards as one cursor."""

import base64
from typing import Final

import msgspec

from tenantq.errors import Invalid
from tenantq.journal.audit_query import Cursor
from tenantq.journal.record import JournalRow
from tenantq.service.audit_trail import AuditPage

ALL_READ: Final = "-"
"""In place of the cursor of a shard whose journal was read to its end."""

_CURSOR: Final = "all:"


def parse_cursor(cursor: str | None, count: int, *, newest_first: bool) -> list[str]:
    """Return the cursor of each shard: empty at the start, ALL_READ at the end."""
    if cursor is None:
        return [""] * count
    try:
        places = msgspec.json.decode(base64.urlsafe_b64decode(cursor.removeprefix(_CURSOR)), type=list[str])
    except (ValueError, msgspec.MsgspecError):
        places = []
    if not cursor.startswith(_CURSOR) or len(places) != count:
        raise Invalid("cursor: unknown. Use a cursor from a previous reply.")
    for place in places:
        if place not in {"", ALL_READ} and Cursor.parse(place).newest_first != newest_first:
            raise Invalid("cursor: is of a query in the other order")
    return places


def merge_pages(pages: list[AuditPage], places: list[str], limit: int, *, newest_first: bool) -> AuditPage:
    """Return the first rows of all pages by time, up to the end of a page that is not its shard's last."""
    taken: list[JournalRow] = []
    at = [0] * len(pages)
    while len(taken) < limit:
        ahead = [number for number, page in enumerate(pages) if at[number] < len(page.rows)]
        if not ahead or any(
            page.cursor is not None and at[number] == len(page.rows) for number, page in enumerate(pages)
        ):
            break
        pick = max if newest_first else min
        number = pick(ahead, key=lambda one: pages[one].rows[at[one]].ts)
        taken.append(pages[number].rows[at[number]])
        at[number] += 1
    following: list[str] = []
    for number, page in enumerate(pages):
        if at[number] == len(page.rows):
            following.append(page.cursor or ALL_READ)
        elif at[number]:
            last = page.rows[at[number] - 1]
            following.append(str(Cursor(last.seq, last.n, newest_first)))
        else:
            following.append(places[number])
    more = any(place != ALL_READ for place in following)
    cursor = _CURSOR + base64.urlsafe_b64encode(msgspec.json.encode(following)).decode() if more else None
    return AuditPage(taken, cursor, any(page.incomplete for page in pages))
