from tests.shards import Q, T, message, pass_time


async def test_a_message_goes_round(shard, clock):
    await shard.add(T, Q, [message("one")])
    (got,) = await shard.poll(T, Q, lease_ms=1_000)
    await pass_time(shard, clock, 1_000)
    (again,) = await shard.poll(T, Q)
    assert (again.body, again.attempt) == (b"one", 2)
    assert [o.ok for o in await shard.ack(T, Q, [got.receipt, again.receipt])] == [False, True]
