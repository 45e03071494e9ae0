"""Keys and values on disk: they round-trip, sort like their numbers, and no queue's range holds another's key."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.domain.limits import QUEUE_ID_MAX, TENANT_ID_MAX
from tenantq.domain.message import DeadLetter, HistoryEntry, Result
from tenantq.store import keys
from tenantq.store.keys import (
    EXPIRES_KEY,
    EXPIRES_RESULT,
    EXPIRES_TTL,
    after,
    be64,
    deadline_key,
    digest,
    expiry_key,
    from_be64,
    level_prefix,
    queue_prefix,
    split_deadline_key,
    split_expiry_key,
    split_prefix,
    split_waiting_key,
    tenant_prefix,
    waiting_key,
)
from tenantq.store.rows import (
    CountersRow,
    DeliveryHistory,
    KeyRow,
    LeaseRow,
    LevelRow,
    MessageRow,
    ResultRow,
    pack_counters,
    pack_extras,
    pack_history,
    pack_key,
    pack_lease,
    pack_message,
    pack_result,
    unpack_counters,
    unpack_key,
    unpack_lease,
    unpack_message,
    unpack_result,
)

edges = [0, 1, 0xFE, 0xFF, 0x100, 0xFFFF, 0x10000, 0xFFFFFF, 0x1000000, 0xFFFFFFFE, 0xFFFFFFFF]
tenant_ids = st.sampled_from([n for n in edges if n <= TENANT_ID_MAX]) | st.integers(0, TENANT_ID_MAX)
queue_ids = st.sampled_from([n for n in edges if n <= QUEUE_ID_MAX]) | st.integers(0, QUEUE_ID_MAX)
owners = st.tuples(tenant_ids, queue_ids)
times = st.sampled_from([0, 1, (1 << 63) - 1, (1 << 64) - 1]) | st.integers(0, (1 << 64) - 1)
ids = st.sampled_from([bytes(16), b"\xff" * 16]) | st.binary(min_size=16, max_size=16)
priorities = st.integers(0, 9)
kinds = st.sampled_from([EXPIRES_TTL, EXPIRES_KEY, EXPIRES_RESULT])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

waiting = st.tuples(owners, priorities, times, ids)
deadlines = st.tuples(owners, times, ids)
expiries = st.tuples(owners, times, kinds, ids)


def waiting_key_of(row: tuple[tuple[int, int], int, int, bytes]) -> bytes:
    """Return the vi key of a row."""
    return waiting_key(queue_prefix(*row[0]), *row[1:])


def deadline_key_of(row: tuple[tuple[int, int], int, bytes]) -> bytes:
    """Return the li key of a row."""
    return deadline_key(queue_prefix(*row[0]), *row[1:])


def expiry_key_of(row: tuple[tuple[int, int], int, bytes, bytes]) -> bytes:
    """Return the ex key of a row."""
    return expiry_key(queue_prefix(*row[0]), *row[1:])


@given(owners)
def test_prefix_round_trips(owner: tuple[int, int]) -> None:
    """It starts with the tenant's prefix."""
    prefix = queue_prefix(*owner)
    assert len(prefix) == keys.PREFIX_BYTES
    assert split_prefix(prefix + b"anything") == owner
    assert prefix.startswith(tenant_prefix(owner[0]))


@given(times)
def test_number_round_trips(number: int) -> None:
    """The bytes that follow it do not matter."""
    assert from_be64(be64(number) + b"rest") == number


@given(waiting)
def test_waiting_key_round_trips(row: tuple[tuple[int, int], int, int, bytes]) -> None:
    """All of its parts are read back."""
    prefix, *rest = split_waiting_key(waiting_key_of(row))
    assert (split_prefix(prefix), *rest) == row
    assert waiting_key_of(row).startswith(level_prefix(prefix, row[1]))
    assert len(waiting_key_of(row)) == keys.PREFIX_BYTES + 1 + keys.SUFFIX_BYTES


@given(deadlines)
def test_deadline_key_round_trips(row: tuple[tuple[int, int], int, bytes]) -> None:
    """All of its parts are read back."""
    prefix, *rest = split_deadline_key(deadline_key_of(row))
    assert (split_prefix(prefix), *rest) == row


@given(expiries)
def test_expiry_key_round_trips(row: tuple[tuple[int, int], int, bytes, bytes]) -> None:
    """All of its parts are read back."""
    prefix, *rest = split_expiry_key(expiry_key_of(row))
    assert (split_prefix(prefix), *rest) == row


@given(waiting, waiting)
def test_waiting_keys_sort_by_queue_then_higher_priority_then_time_then_id(
    a: tuple[tuple[int, int], int, int, bytes], b: tuple[tuple[int, int], int, int, bytes]
) -> None:
    """The order of bytes is the order of delivery."""
    order = [(owner, -priority, at, id) for owner, priority, at, id in (a, b)]
    assert (waiting_key_of(a) < waiting_key_of(b)) == (order[0] < order[1])


@given(deadlines, deadlines)
def test_deadline_keys_sort_by_queue_then_time_then_id(
    a: tuple[tuple[int, int], int, bytes], b: tuple[tuple[int, int], int, bytes]
) -> None:
    """A sweep finds the earliest deadline first."""
    assert (deadline_key_of(a) < deadline_key_of(b)) == (a < b)


@given(expiries, expiries)
def test_expiry_keys_sort_by_queue_then_time(
    a: tuple[tuple[int, int], int, bytes, bytes], b: tuple[tuple[int, int], int, bytes, bytes]
) -> None:
    """Kind and reference come last."""
    assert (expiry_key_of(a) < expiry_key_of(b)) == (a < b)


@given(owners, owners, st.binary(max_size=48))
def test_no_queues_range_holds_another_queues_key(mine: tuple[int, int], other: tuple[int, int], rest: bytes) -> None:
    """Covers IDs at the edges of their bytes, whatever follows the prefix."""
    lower, upper = queue_prefix(*mine), after(queue_prefix(*mine))
    assert (lower <= queue_prefix(*other) + rest < upper) == (mine == other)


@given(tenant_ids, owners, st.binary(max_size=48))
def test_no_tenants_range_holds_another_tenants_key(tenant: int, other: tuple[int, int], rest: bytes) -> None:
    """Deleting a tenant by range deletes only its own rows."""
    lower, upper = tenant_prefix(tenant), after(tenant_prefix(tenant))
    assert (lower <= queue_prefix(*other) + rest < upper) == (tenant == other[0])


@given(owners, priorities, priorities, times, ids)
def test_no_levels_range_holds_another_levels_key(
    owner: tuple[int, int], level: int, priority: int, at: int, id: bytes
) -> None:
    """A poll's scan stays in its priority."""
    lower = level_prefix(queue_prefix(*owner), level)
    assert (lower <= waiting_key(queue_prefix(*owner), priority, at, id) < after(lower)) == (level == priority)


@given(st.binary(min_size=1, max_size=12), st.binary(max_size=12))
def test_after_is_the_first_key_past_a_prefix(prefix: bytes, rest: bytes) -> None:
    """Everything with the prefix sorts before it; greater keys without the prefix do not."""
    end = after(prefix)
    assert prefix + rest < end
    if rest >= prefix and not rest.startswith(prefix) and prefix.strip(b"\xff"):
        assert rest >= end


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_digests_are_sixteen_bytes_and_differ(a: bytes, b: bytes) -> None:
    """Different data gives different digests."""
    assert len(digest(a)) == keys.ID_BYTES
    assert (digest(a) == digest(b)) == (a == b)


u16, u32, u64 = st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF), st.integers(0, (1 << 64) - 1)


@given(
    priorities, u16, u64, u64, u64, st.none() | texts, st.dictionaries(texts, texts, max_size=4), st.binary(max_size=99)
)
def test_message_row_round_trips(
    priority: int,
    attempts: int,
    added: int,
    visible: int,
    expires: int,
    group: str | None,
    attributes: dict[str, str],
    body: bytes,
) -> None:
    """Rare fields may be present or missing; its size is what was charged."""
    extras = pack_extras(group, attributes) if group is not None or attributes else b""
    row = unpack_message(pack_message(priority, attempts, added, visible, expires, extras, body))
    size = len(body) + len(extras)
    assert row == MessageRow(priority, attempts, added, visible, expires, body, group, attributes, size)


histories = st.lists(
    st.builds(HistoryEntry, u16, u64, st.sampled_from(["nacked", "lease_expired", "released"]), texts), max_size=4
)
delivery_histories = st.builds(DeliveryHistory, histories, st.none() | st.builds(DeadLetter, texts, texts, u16, u64))


@given(u16, u64, u64, u64, u64, u64, u32, priorities, u16, st.just(b"") | ids, st.none() | delivery_histories)
def test_lease_row_round_trips(
    attempts: int,
    token: int,
    deadline: int,
    leased: int,
    visible: int,
    expires: int,
    size: int,
    priority: int,
    allowed: int,
    group: bytes,
    history: DeliveryHistory | None,
) -> None:
    """Group and history may be present or missing."""
    packed = pack_history(history) if history is not None else b""
    row = LeaseRow(attempts, token, deadline, leased, visible, expires, size, priority, allowed, group, packed)
    again = unpack_lease(pack_lease(row))
    assert again == row
    assert again.unpack_history() == (history if history is not None else DeliveryHistory([]))


@given(ids, ids, u64)
def test_key_row_round_trips(id: bytes, body: bytes, expires: int) -> None:
    """Message, body digest and expiry are read back."""
    assert unpack_key(pack_key(KeyRow(id, body, expires))) == KeyRow(id, body, expires)


@given(st.sampled_from(["completed", "failed"]), st.none() | st.binary(max_size=50), st.none() | texts, u64)
def test_result_row_round_trips(status: str, value: bytes | None, error: str | None, expires: int) -> None:
    """Bytes stay bytes and text stays text."""
    row = ResultRow(Result(status, value, error), expires)  # type: ignore[arg-type]
    assert unpack_result(pack_result(row)) == row


levels = st.builds(LevelRow, priorities, u64, u64, st.binary(max_size=25), st.binary(max_size=25), u64)


@given(st.lists(levels, max_size=10), u64, u64, u64, u64, u64, st.lists(u64, max_size=12))
def test_counters_row_round_trips(
    rows: list[LevelRow], blocked: int, in_flight: int, size: int, lease: int, expiry: int, totals: list[int]
) -> None:
    """Every level and figure is read back."""
    row = CountersRow(rows, blocked, in_flight, size, lease, expiry, totals)
    assert unpack_counters(pack_counters(row)) == row


@pytest.mark.parametrize("family", keys.QUEUE_FAMILIES)
def test_queue_families_exist(family: str) -> None:
    """A delete by range misses none of them."""
    assert family in keys.FAMILIES
    assert set(keys.FAMILIES) - set(keys.QUEUE_FAMILIES) == {"meta", "jn"}
