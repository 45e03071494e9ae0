"""Refused calls written to the journal: exact counts in a bounded number of rows."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenantq.gates.call_notes import ANY, CallNote, CallNotes, CallOutcome, CountedCallNote
from tenantq.runtime.clock import ManualClock


def refusal(tenant: str = "acme", n: int = 0, outcome: CallOutcome = "denied", **fields: str) -> CallNote:
    """Return a refused call."""
    call = CallNote(
        tenant=tenant,
        queue="q",
        action="add",
        principal="key:1",
        remote="10.0.0.1",
        request_id=f"r{n}",
        user_agent="curl",
        outcome=outcome,
        error_code="forbidden",
        details="no grant",
    )
    return msgspec.structs.replace(call, **fields)


class Journal:
    """Collects the rows, and fails on request."""

    def __init__(self) -> None:
        self.batches: list[list[CountedCallNote]] = []
        self.fails = False

    def write(self, rows: list[CountedCallNote]) -> None:
        """Store rows, or fail."""
        if self.fails:
            raise OSError("no space left")
        self.batches.append(rows)

    @property
    def rows(self) -> list[CountedCallNote]:
        """All rows so far."""
        return [row for batch in self.batches for row in batch]


def test_the_first_refusals_are_written_one_by_one_at_once(clock: ManualClock) -> None:
    """Each row has every known detail of its call."""
    journal = Journal()
    refusals = CallNotes(clock, journal.write)
    for n in range(20):
        refusals.note(refusal(n=n))
        assert len(journal.batches) == n + 1
    row = journal.rows[7]
    assert (row.request_id, row.user_agent, row.details, row.count) == ("r7", "curl", "no grant", 1)
    assert row.first_at == row.last_at == clock.wall_ms()
    assert refusals.pending == 0


def test_a_flood_is_coalesced_into_counted_rows(clock: ManualClock) -> None:
    """Each flush writes one row with the count and the first and last time."""
    journal = Journal()
    refusals = CallNotes(clock, journal.write)
    start = clock.wall_ms()
    for n in range(1_020):
        refusals.note(refusal(n=n))
        if n == 519:
            clock.advance(400)
    assert len(journal.rows) == 20
    assert refusals.pending == 1_000
    clock.advance(599)
    assert len(journal.rows) == 20
    clock.advance(1)
    (merged,) = journal.batches[-1]
    assert (merged.count, merged.first_at, merged.last_at) == (1_000, start, start + 400)
    assert (merged.tenant, merged.queue, merged.action, merged.principal) == ("acme", "q", "add", "key:1")
    assert (merged.remote, merged.outcome, merged.error_code) == ("10.0.0.1", "denied", "forbidden")
    assert (merged.request_id, merged.user_agent, merged.details) == ("", "", "no grant")
    clock.advance(10_000)
    assert len(journal.rows) == 21


def test_each_second_starts_with_single_rows_again(clock: ManualClock) -> None:
    """The first refusals of the next burst are recorded in full."""
    journal = Journal()
    refusals = CallNotes(clock, journal.write, rows_per_second=2)
    for _ in range(3):
        for n in range(5):
            refusals.note(refusal(n=n))
        clock.advance(1_000)
    assert [row.count for row in journal.rows] == [1, 1, 3] * 3


def test_refusals_are_coalesced_by_all_fields_except_request_id_and_agent(clock: ManualClock) -> None:
    """Tenant, queue, action, principal, remote, outcome and code each get a separate row."""
    journal = Journal()
    refusals = CallNotes(clock, journal.write, rows_per_second=0)
    kinds: tuple[dict[str, str], ...] = (
        {},
        {"queue": "p"},
        {"action": "poll"},
        {"principal": "key:2"},
        {"remote": "::1"},
        {"error_code": "x"},
    )
    for n in range(4):
        for changed in kinds:
            refusals.note(msgspec.structs.replace(refusal(n=n), **changed))
        refusals.note(refusal(n=n, outcome="throttled"))
        refusals.note(refusal("bolt", n=n, user_agent=f"agent {n}"))
    refusals.flush()
    assert [row.count for row in journal.rows] == [4] * 8


def test_a_flood_of_one_tenant_does_not_coalesce_another_tenants_rows(clock: ManualClock) -> None:
    """The rows of the other tenant stay single and detailed."""
    journal = Journal()
    refusals = CallNotes(clock, journal.write, kinds_max=50)
    for n in range(5_000):
        refusals.note(refusal(n=n, queue=f"q{n}", remote=f"10.0.{n // 256}.{n % 256}"))
    refusals.note(refusal("bolt"))
    assert [row.request_id for row in journal.rows if row.tenant == "bolt"] == ["r0"]
    for _ in range(100):
        refusals.note(refusal("bolt"))
    refusals.flush()
    assert [row.queue for row in journal.rows if row.tenant == "bolt"] == ["q"] * 21
    assert sum(row.count for row in journal.rows) == 5_101


def test_refusals_beyond_the_row_limit_are_counted_by_tenant_and_outcome(clock: ManualClock) -> None:
    """Beyond that limit they are counted by outcome alone, in a marked row. No call is left out."""
    journal = Journal()
    refusals = CallNotes(clock, journal.write, rows_per_second=0, kinds_max=10)
    for tenant in range(30):
        for queue in range(5):
            refusals.note(refusal(f"tenant-{tenant}", queue=f"q{queue}"))
    refusals.flush()
    assert len(journal.rows) == 10 + 10 + 1
    own, of_tenant, of_all = journal.rows[:10], journal.rows[10:20], journal.rows[20]
    assert {row.count for row in own} == {1}
    assert {(row.count, row.queue, row.action, row.principal, row.remote) for row in of_tenant} == {(4, *([ANY] * 4))}
    assert (of_all.tenant, of_all.count) == ("", 100)
    assert sum(row.count for row in journal.rows) == 150
    for tenant in (0, 29):
        refusals.note(refusal(f"tenant-{tenant}"))
    refusals.flush()
    assert [row.queue for row in journal.batches[-1]] == ["q", "q"]


def test_the_single_rows_of_all_tenants_together_are_bounded(clock: ManualClock) -> None:
    """A caller that knows many tenant names cannot cause more single rows."""
    journal = Journal()
    refusals = CallNotes(clock, journal.write, rows_per_second=3)
    for n in range(1_000):
        refusals.note(refusal(f"tenant-{n}"))
    assert len(journal.rows) == 30
    refusals.flush()
    assert sum(row.count for row in journal.rows) == 1_000


def test_rows_that_could_not_be_written_are_kept(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """They are written with the next timed or explicit flush."""
    journal = Journal()
    refusals = CallNotes(clock, journal.write, rows_per_second=2)
    journal.fails = True
    for _ in range(5):
        refusals.note(refusal())
    clock.advance(1_000)
    assert refusals.pending == 5
    assert "could not be journaled" in caplog.text
    journal.fails = False
    clock.advance(1_000)
    assert [row.count for row in journal.rows] == [5]
    journal.fails = True
    refusals.note(refusal())
    refusals.flush()
    journal.fails = False
    refusals.flush()
    refusals.flush()
    assert [row.count for row in journal.rows] == [5, 1]
    assert refusals.pending == 0


def view(queue: str = "work", **fields: str) -> CallNote:
    """Return a read of a queue's settings."""
    read = CallNote(tenant="acme", queue=queue, action="get_queue", principal="key:1", outcome="ok", error_code="")
    return msgspec.structs.replace(read, **fields)


def view_notes(clock: ManualClock, journal: Journal, kinds_max: int = 10_000) -> CallNotes:
    """Return notes that merge repeats for a minute."""
    return CallNotes(clock, journal.write, 5_000, kinds_max, 60_000, merges_repeats=True)


def test_repeated_reads_are_merged_into_one_row_for_each_window(clock: ManualClock) -> None:
    """The first is written at once. A poller causes one row a minute, and the counts are complete."""
    journal = Journal()
    views = view_notes(clock, journal)
    for _ in range(60):
        views.note(view())
        clock.advance(5_000)
    assert [row.count for row in journal.rows] == [1, 11, 12, 12, 12, 12]
    assert journal.rows[1].last_at - journal.rows[1].first_at == 50_000
    clock.advance(60_000)
    assert [row.count for row in journal.rows] == [1, 11, 12, 12, 12, 12]
    views.note(view())
    assert journal.rows[-1].count == 1, "a reader that paused is new"


def test_reads_of_another_caller_queue_or_detail_are_written_at_once(clock: ManualClock) -> None:
    """Only repeats of the same read are merged."""
    journal = Journal()
    views = view_notes(clock, journal)
    others: tuple[dict[str, str], ...] = (
        {}, {"queue": "mail"}, {"principal": "key:2"}, {"remote": "10.0.0.9"}, {"action": "list_queues"}, {"details": "x"},
    )  # fmt: skip
    for other in others * 3:
        views.note(view(**other))
    assert len(journal.rows) == len(others)
    views.flush()
    assert [row.count for row in journal.rows] == [1] * len(others) + [2] * len(others)


def test_reads_that_are_flushed_leave_nothing_behind(clock: ManualClock) -> None:
    """After a flush, such as at a stop, no counter and no timer is left."""
    journal = Journal()
    views = view_notes(clock, journal)
    for n in range(1_000):
        views.note(view(f"q{n}"))
        views.note(view(f"q{n}"))
    views.flush()
    assert sum(row.count for row in journal.rows) == 2_000
    assert max(map(len, journal.batches)) <= 200
    assert (len(views._kinds), len(views._kinds_of), views._timer) == (0, 0, None)


def test_readers_of_very_many_queues_are_bounded(clock: ManualClock) -> None:
    """Beyond a tenth of the kinds, a caller's reads in a tenant are one kind. Nothing changes for other tenants."""
    journal = Journal()
    views = view_notes(clock, journal, kinds_max=100)
    for _ in range(3):
        for n in range(6_000):
            views.note(view(f"q{n}"))
        views.note(view(tenant="bolt"))
        views.note(view("q7000", principal="key:2"))
    assert len(views._kinds) == 10 + 2 + 1
    clock.advance(120_000)
    assert len(journal.rows) == 2 * (10 + 2 + 1)
    merged = [(row.principal, row.queue, row.remote, row.count) for row in journal.rows if row.queue == ANY]
    assert merged == [
        ("key:1", ANY, ANY, 1),
        ("key:2", ANY, ANY, 1),
        ("key:1", ANY, ANY, 17_969),
        ("key:2", ANY, ANY, 2),
    ]
    assert sum(row.count for row in journal.rows) == 3 * 6_002
    assert [row.count for row in journal.rows if row.tenant == "bolt"] == [1, 2]
    clock.advance(60_000)
    assert (len(views._kinds), len(views._kinds_of), len(views._overflow), views._timer) == (0, 0, 0, None)


def test_many_due_rows_are_written_in_small_parts(clock: ManualClock) -> None:
    """One turn of the event loop never has to write thousands of rows."""
    journal = Journal()
    views = view_notes(clock, journal)
    for n in range(1_000):
        views.note(view(f"q{n}"))
        views.note(view(f"q{n}"))
    clock.advance(60_100)
    merged = [batch for batch in journal.batches if batch[0].count == 1][1_000:]
    assert [len(batch) for batch in merged] == [200] * 5


_calls = st.lists(
    st.tuples(
        st.integers(0, 6),  # tenant
        st.integers(0, 8),  # queue
        st.sampled_from(["denied", "throttled", "refused"]),
        st.integers(1, 30),  # times
        st.integers(0, 700),  # ms until the next call
        st.booleans(),  # the journal fails
    ),
    max_size=60,
)


@settings(max_examples=100)
@given(calls=_calls)
def test_counts_are_exact_and_rows_are_bounded_under_any_flood(
    calls: list[tuple[int, int, CallOutcome, int, int, bool]],
) -> None:
    """Counts match by tenant and outcome where rows name them, and in total always. The number of rows depends on the elapsed time."""
    clock, journal = ManualClock(), Journal()
    refusals = CallNotes(clock, journal.write, rows_per_second=3, kinds_max=20, flush_ms=1_000)
    noted: Counter[str] = Counter()
    noted_of: Counter[tuple[str, str]] = Counter()
    start = clock.monotonic_ms()
    for tenant, queue, outcome, times, passed, fails in calls:
        journal.fails = fails
        for n in range(times):
            refusals.note(refusal(f"tenant-{tenant}", n, outcome, queue=f"q{queue}"))
        noted[outcome] += times
        noted_of[f"tenant-{tenant}", outcome] += times
        clock.advance(passed)
    journal.fails = False
    refusals.flush()
    written: Counter[str] = Counter()
    written_of: Counter[tuple[str, str]] = Counter()
    for row in journal.rows:
        written[row.outcome] += row.count
        written_of[row.tenant, row.outcome] += row.count
        assert row.first_at <= row.last_at
    assert written == noted
    assert all(count <= noted_of[key] for key, count in written_of.items() if key[0])
    assert refusals.pending == 0
    seconds = (clock.monotonic_ms() - start) // 1_000 + 2
    assert len(journal.rows) <= seconds * (10 * 3 + 20 + 20 + 3)
