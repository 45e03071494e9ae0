"""Batches: refused whole above the limit, answered item by item below it."""

import pytest

from tenantq.domain.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, BODY_BYTES_MAX, REPLY_BYTES_MAX
from tenantq.errors import Invalid, LeaseLost, NotFound, TooLarge
from tests.administration import put_queue, queues
from tests.shards import Q, T, message
from tests.verbs import Shard


async def test_37_a_batch_above_the_limit_is_refused_whole(shard: Shard) -> None:
    """None of it is executed."""
    many = BATCH_MESSAGES_MAX + 1
    await put_queue(shard, T, Q)
    with pytest.raises(Invalid, match="1001 in one batch"):
        await shard.add(T, Q, [message()] * many)
    for call in (
        shard.ack(T, Q, ["0" * 48] * many),
        shard.nack(T, Q, ["0" * 48] * many),
        shard.release(T, Q, ["0" * 48] * many),
        shard.extend(T, Q, ["0" * 48] * many, lease_ms=1),
        shard.remove(T, Q, [bytes(16)] * many),
    ):
        with pytest.raises(Invalid, match="1001 in one batch"):
            await call
    assert shard.reads.stats(T, Q).added_total == 0


async def test_37_an_empty_batch_is_refused(shard: Shard) -> None:
    """It can only be a mistake."""
    await put_queue(shard, T, Q)
    with pytest.raises(Invalid, match="0 in one batch"):
        await shard.add(T, Q, [])
    with pytest.raises(Invalid, match="0 in one batch"):
        await shard.ack(T, Q, [])
    with pytest.raises(Invalid, match="0 in one batch"):
        await shard.remove(T, Q, [])


async def test_37_a_batch_of_too_many_bytes_is_refused_whole(shard: Shard) -> None:
    """Each message alone is small enough."""
    body = bytes(BODY_BYTES_MAX)
    with pytest.raises(TooLarge, match=str(BATCH_BYTES_MAX)):
        await shard.add(T, Q, [message(body)] * (BATCH_BYTES_MAX // BODY_BYTES_MAX + 1))
    assert Q not in queues(shard, T)


async def test_37_valid_and_invalid_messages_are_answered_in_input_order(shard: Shard) -> None:
    """The valid ones are added."""
    batch = [message("a"), message("b", priority=10), message(bytes(BODY_BYTES_MAX + 1)), message("d", key="")]
    replies = await shard.add(T, Q, [*batch, message("e")])
    assert [type(reply.error) for reply in replies] == [type(None), Invalid, TooLarge, Invalid, type(None)]
    got = await shard.poll(T, Q, max=9)
    assert [one.body for one in got] == [b"a", b"e"]
    assert [one.id for one in got] == [replies[0].id, replies[4].id]


async def test_37_mixed_receipts_are_answered_in_input_order(shard: Shard) -> None:
    """Covers valid, used and malformed receipts."""
    await shard.add(T, Q, [message(str(n)) for n in range(4)])
    a, b, c, d = (one.receipt for one in await shard.poll(T, Q, max=4))
    await shard.ack(T, Q, [b])
    for outcomes in (
        await shard.extend(T, Q, ["", a, b, c, d], lease_ms=1_000),
        await shard.ack(T, Q, ["", a, b, c, d]),
    ):
        assert [outcome.ok for outcome in outcomes] == [False, True, False, True, True]
        assert isinstance(outcomes[0].error, LeaseLost)
        assert isinstance(outcomes[2].error, LeaseLost)


async def test_37_mixed_ids_are_answered_in_input_order(shard: Shard) -> None:
    """Covers existing, unknown and malformed IDs, and one that is repeated in the batch."""
    a, b = await shard.add(T, Q, [message("a"), message("b")])
    outcomes = await shard.remove(T, Q, [a.id, bytes(16), "nonsense", b.raw_id, a.id])
    assert [outcome.ok for outcome in outcomes] == [True, False, False, True, False]
    assert [type(outcome.error) for outcome in outcomes[1:]] == [NotFound, Invalid, type(None), NotFound]
    assert shard.reads.stats(T, Q).removed_total == 2


async def test_largest_allowed_batch_succeeds(shard: Shard) -> None:
    """One thousand messages fit one add, one poll and one ack."""
    await shard.add(T, Q, [message(str(n)) for n in range(BATCH_MESSAGES_MAX)])
    got = await shard.poll(T, Q, max=BATCH_MESSAGES_MAX)
    assert len(got) == BATCH_MESSAGES_MAX
    assert all(outcome.ok for outcome in await shard.ack(T, Q, [one.receipt for one in got]))


async def test_poll_stops_at_the_reply_size_limit_and_loses_nothing(shard: Shard) -> None:
    """The rest stays in order for the next poll."""
    for start in (0, 12):
        await shard.add(T, Q, [message(bytes([n]) * BODY_BYTES_MAX) for n in range(start, start + 12)])
    first = await shard.poll(T, Q, max=1_000)
    assert len(first) == REPLY_BYTES_MAX // BODY_BYTES_MAX
    bodies = [one.body[0] for one in first]
    while more := await shard.poll(T, Q, max=1_000):
        bodies += [one.body[0] for one in more]
    assert bodies == list(range(24))
