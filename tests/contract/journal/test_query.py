"""The audit query: the same rows whether they are in the store, in segments, or in both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest

from tenantq.domain.access import AuditResult
from tenantq.domain.message import Caller
from tenantq.errors import Invalid, Unavailable
from tenantq.journal.audit_query import AuditReader, Cursor
from tenantq.journal.row_filter import JournalFilter, result_of
from tenantq.journal.segment_index import SegmentIndex
from tests.administration import put_tenant
from tests.contract.journal.test_export import some_work
from tests.shards import Q, T, journal_rows, message, pass_time

if TYPE_CHECKING:
    from typing import BinaryIO

    from tenantq.journal.audit_query import JournalPage
    from tenantq.journal.export_target import DirectoryTarget
    from tenantq.journal.record import JournalRow
    from tenantq.runtime.clock import ManualClock
    from tests.contract.journal.conftest import MakeExporter
    from tests.verbs import Shard


def walk(reader: AuditReader, limit: int = 7, *, newest_first: bool = False, **wanted: Any) -> list[JournalRow]:
    """Return all rows, page by page."""
    found: list[JournalRow] = []
    place = None
    while True:
        page = reader.page(JournalFilter(**wanted), limit=limit, place=place, newest_first=newest_first)
        assert len(page.rows) <= limit
        assert not page.incomplete
        found += page.rows
        place = page.more
        if place is None:
            return found


async def varied_work(shard: Shard, clock: ManualClock) -> None:
    """Do work in two tenants over several hours, some of it refused."""
    await put_tenant(shard, "acme")
    for hour in range(3):
        await some_work(shard, 4)
        ada = Caller("jwt:ada", "10.0.0.7", f"r-{hour}", "browser")
        await shard.add("acme", "mail-in", [message("a"), message("b")], ada)
        await shard.add("acme", "orders", [message("c")], ada)
        await shard.ack("acme", "orders", ["0" * 31 + "1" + "f" * 16], caller=ada)
        await pass_time(shard, clock, 3_600_000)


async def archived(
    shard: Shard, clock: ManualClock, make_exporter: MakeExporter, target: DirectoryTarget
) -> tuple[AuditReader, list[JournalRow]]:
    """Return a reader of a journal that is mostly in segments, and all its rows."""
    await varied_work(shard, clock)
    index = SegmentIndex(target, shard.name)
    assert index.at(1) is None  # listed before any exist: the exporter announces new segments
    exporter = make_exporter(shard, index=index, segment_rows=9, keep_records=6)
    rows = await journal_rows(shard)
    await exporter.export_now()
    assert shard.journal.span[0] > 20
    return AuditReader(shard.journal, index), rows + await journal_rows(shard, after=rows[-1].seq)


CONDITIONS: list[dict[str, Any]] = [
    {},
    {"tenant": "acme"},
    {"tenant": "nobody"},
    {"ops": frozenset({"add"})},
    {"ops": frozenset({"poll", "ack"})},
    {"principal": "jwt:ada"},
    {"queue": "orders"},
    {"queues": ("mail-*",)},
    {"queues": ("mail-*", "ord?rs")},
    *({"result": result} for result in get_args(AuditResult)),
    {"tenant": "acme", "ops": frozenset({"add"}), "queue": "mail-in", "result": "SUCCESS"},
]


@pytest.mark.parametrize("wanted", CONDITIONS)
async def test_every_filter_finds_the_same_rows_wherever_they_are(
    wanted: dict[str, Any], shard: Shard, clock: ManualClock, make_exporter: MakeExporter, target: DirectoryTarget
) -> None:
    """Both orders and any page size give the same rows."""
    reader, rows = await archived(shard, clock, make_exporter, target)
    expected = [row for row in rows if JournalFilter(**wanted).matches(row)]
    assert bool(expected) == (wanted not in ({"tenant": "nobody"}, {"result": "DENIED"}))
    for limit in (1, 5, 1_000):
        assert walk(reader, limit, **wanted) == expected
        assert walk(reader, limit, newest_first=True, **wanted) == expected[::-1]
    fresh = AuditReader(shard.journal, SegmentIndex(target, shard.name))  # this one lists the target itself
    assert walk(fresh, **wanted) == expected


async def test_times_and_messages_are_found_in_segments(
    shard: Shard, clock: ManualClock, make_exporter: MakeExporter, target: DirectoryTarget
) -> None:
    """Times are exact to the millisecond, and the end is exclusive."""
    reader, rows = await archived(shard, clock, make_exporter, target)
    times = sorted({row.ts for row in rows})
    for start in times:
        for end in times:
            expected = [row for row in rows if start <= row.ts < end]
            assert walk(reader, 100, start=start, end=end) == expected
    one = next(row.message_id for row in rows if row.op == "ack" and row.message_id)
    assert {row.op for row in walk(reader, message=one)} == {"add", "poll", "ack"}


async def test_segments_of_other_hours_are_not_opened(
    shard: Shard,
    clock: ManualClock,
    make_exporter: MakeExporter,
    target: DirectoryTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their names contain the hour."""
    reader, rows = await archived(shard, clock, make_exporter, target)
    opened: list[str] = []
    plain = target.open

    def noting(name: str) -> BinaryIO:
        opened.append(name)
        return plain(name)

    monkeypatch.setattr(target, "open", noting)
    hour = rows[-1].ts // 3_600_000 - 1
    walk(reader, 1_000, start=hour * 3_600_000, end=(hour + 1) * 3_600_000)
    assert opened
    assert len({name.rpartition("/shard=")[0] for name in opened}) == 1


async def test_paging_is_stable_while_rows_arrive_and_are_trimmed(
    shard: Shard, clock: ManualClock, make_exporter: MakeExporter, target: DirectoryTarget
) -> None:
    """Between any two pages, no row is repeated or skipped."""
    await varied_work(shard, clock)
    index = SegmentIndex(target, shard.name)
    exporter = make_exporter(shard, index=index, segment_rows=20, keep_records=4)
    reader = AuditReader(shard.journal, index)
    rows = await journal_rows(shard)
    up: list[JournalRow] = []
    down: list[JournalRow] = []
    below: tuple[int, int] | None = None
    above: tuple[int, int] | None = None
    for step in range(1_000):
        page: JournalPage = reader.page(JournalFilter(tenant="acme"), limit=2, place=above)
        up, above = up + page.rows, page.more
        if step == 0 or below is not None:
            page = reader.page(JournalFilter(tenant="acme"), limit=2, place=below, newest_first=True)
            down, below = down + page.rows, page.more
        if step in {3, 6}:
            await shard.add("acme", "orders", [message()])
            await exporter.export_now()
        if above is None and below is None:
            break
    assert down[::-1] == [row for row in rows if row.tenant == "acme"]
    assert up == down[::-1] + [row for row in await journal_rows(shard, after=rows[-1].seq) if row.tenant == "acme"]


async def test_query_does_a_limited_amount_of_work(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page may be empty, and says where to continue."""
    await some_work(shard, 20)
    monkeypatch.setattr("tenantq.domain.limits.TRACE_RECORDS_MAX", 5)
    monkeypatch.setattr("tenantq.journal.audit_query._SLICE", 5)
    page = AuditReader(shard.journal, None).page(JournalFilter(ops=frozenset({"ack"})), limit=9)
    assert page.rows == []
    assert page.more is not None
    assert len(walk(AuditReader(shard.journal, None), ops=frozenset({"ack"}))) == 20


async def test_unreadable_segment_is_named(
    shard: Shard, clock: ManualClock, make_exporter: MakeExporter, target: DirectoryTarget
) -> None:
    """Nothing is skipped silently."""
    reader, _ = await archived(shard, clock, make_exporter, target)
    victim = min(target.path.rglob("*.parquet"))
    victim.write_bytes(b"not Parquet")
    with pytest.raises(Unavailable, match=victim.name):
        walk(reader, tenant="acme")


async def test_missing_records_are_reported(shard: Shard, clock: ManualClock) -> None:
    """The journal was trimmed, and the server cannot reach its segments."""
    await varied_work(shard, clock)
    await shard.journal.trim(10)
    for newest_first in (False, True):
        page = AuditReader(shard.journal, None).page(JournalFilter(), limit=1_000, newest_first=newest_first)
        assert page.incomplete
        assert {row.seq for row in page.rows} == set(range(11, shard.journal.span[1] + 1))


@pytest.mark.parametrize(
    "text", ["", "1", "1.", ".1", "--1.1", "1.1.1", "a.b", "9" * 50 + ".1", "\u0661.\u0661", None, 7]
)
def test_invalid_cursor_is_refused(text: Any) -> None:
    """Any value that was not issued is refused."""
    with pytest.raises(Invalid, match="cursor"):
        Cursor.parse(text)


def test_cursors_encode_their_direction() -> None:
    """They round-trip."""
    for cursor in (Cursor(1, 2), Cursor(7, 0, newest_first=True)):
        assert Cursor.parse(str(cursor)) == cursor


def test_every_outcome_maps_to_one_result() -> None:
    """Unknown outcomes are errors."""
    known = ("ok", "dead", "denied", "throttled", "refused", "failed", "denials", "")
    results = [result_of(outcome) for outcome in known]
    assert results == ["SUCCESS", "SUCCESS", "DENIED", "DENIED", "ERROR", "ERROR", "ERROR", "ERROR"]


async def test_row_is_the_same_in_store_and_segment(
    shard: Shard, clock: ManualClock, make_exporter: MakeExporter, target: DirectoryTarget
) -> None:
    """Every column is equal."""
    reader, rows = await archived(shard, clock, make_exporter, target)
    again = walk(reader, 1_000)
    assert [msgspec.structs.asdict(row) for row in again] == [msgspec.structs.asdict(row) for row in rows]
    assert {(row.user_agent, row.remote) for row in again if row.principal == "jwt:ada"} == {("browser", "10.0.0.7")}
    assert (T, Q) in {(row.tenant, row.queue) for row in again}


async def test_unlistable_segments_are_an_error_for_older_rows_only(
    shard: Shard,
    clock: ManualClock,
    make_exporter: MakeExporter,
    target: DirectoryTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows in the store can still be read, newest first."""
    await archived(shard, clock, make_exporter, target)

    def away(under: str) -> list[str]:
        raise OSError(113, "No route to host")

    monkeypatch.setattr(target, "names", away)
    reader = AuditReader(shard.journal, SegmentIndex(target, shard.name))
    assert reader.page(JournalFilter(), limit=3, newest_first=True).rows
    with pytest.raises(Unavailable, match="unreachable now"):
        reader.page(JournalFilter(), limit=3)
