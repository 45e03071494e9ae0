"""Low priorities advance under a permanent flood of high ones."""

from tenantq.runtime.clock import ManualClock
from tests.administration import put_queue
from tests.shards import Q, T, message, pass_time
from tests.verbs import Shard


async def flood(shard: Shard, rounds: int, size: int = 1) -> list[int]:
    """Keep the queue full of priority 9 and return the delivered priorities in order."""
    order: list[int] = []
    for _ in range(rounds):
        await shard.add(T, Q, [message(priority=9) for _ in range(size)])
        got = await shard.poll(T, Q, max=size)
        assert len(got) == size
        order += [one.priority for one in got]
        await shard.ack(T, Q, [one.receipt for one in got])
    return order


async def test_22_low_priority_still_progresses_under_permanent_high_load(shard: Shard, clock: ManualClock) -> None:
    """After its wait, exactly one delivery in low_priority_every goes to it."""
    await put_queue(shard, T, Q, low_priority_every=8, low_priority_after_ms=1_000)
    await shard.add(T, Q, [message(priority=0) for _ in range(50)] + [message(priority=9)])
    assert 0 not in await flood(shard, 40)  # it has not waited long enough
    await pass_time(shard, clock, 1_000)
    order = await flood(shard, 80)
    assert order.count(0) == 10
    gaps = [b - a for a, b in zip(_at(order), _at(order)[1:], strict=False)]
    assert set(gaps) == {8}


def _at(order: list[int]) -> list[int]:
    return [n for n, priority in enumerate(order) if priority == 0]


async def test_22_low_priority_share_applies_to_large_polls(shard: Shard, clock: ManualClock) -> None:
    """Within a batch, the higher priority still comes first."""
    await put_queue(shard, T, Q, low_priority_every=10, low_priority_after_ms=0)
    await shard.add(T, Q, [message(priority=0) for _ in range(100)] + [message(priority=9)])
    await pass_time(shard, clock, 1)
    order = await flood(shard, 10, size=50)
    assert order.count(0) == 50
    assert order[:50] == sorted(order[:50], reverse=True)


async def test_22_low_priority_share_is_divided_among_all_lower_priorities(shard: Shard, clock: ManualClock) -> None:
    """None of them waits forever."""
    await put_queue(shard, T, Q, low_priority_every=4, low_priority_after_ms=0)
    await shard.add(T, Q, [message(priority=p) for p in (1, 3, 5) for _ in range(40)] + [message(priority=9)])
    await pass_time(shard, clock, 1)
    order = await flood(shard, 120)
    assert order.count(9) == 90
    assert all(order.count(p) >= 5 for p in (1, 3, 5))


async def test_22_strict_priority_applies_if_one_poll_takes_everything(shard: Shard, clock: ManualClock) -> None:
    """No share is reserved when the high priority runs dry."""
    await put_queue(shard, T, Q, low_priority_every=2, low_priority_after_ms=0)
    await shard.add(T, Q, [message(priority=0) for _ in range(5)] + [message(priority=9) for _ in range(5)])
    await pass_time(shard, clock, 1)
    assert [one.priority for one in await shard.poll(T, Q, max=10)] == [9] * 5 + [0] * 5
