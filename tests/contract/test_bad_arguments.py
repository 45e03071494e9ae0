"""Invalid arguments get a typed error; none stops the shard or damages its directory."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tenantq.domain.message import Caller, NewMessage, Result
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.errors import Closed, Invalid, TenantqError, Unavailable
from tenantq.runtime.clock import ManualClock
from tests.administration import delete_queue, pause_queue, purge, put_queue, put_tenant, queues, tenants, unpause_queue
from tests.conftest import OpenShard
from tests.shards import Q, T, message, wait_until_idle
from tests.verbs import Shard

Call = Callable[[Shard, Any], Awaitable[Any]]


class Text(str):
    """A subclass of str, as template libraries have it."""

    __slots__ = ()


class Bytes(bytes):
    """A subclass of bytes."""

    __slots__ = ()


class Unprintable:
    """An object whose repr fails."""

    def __repr__(self) -> str:
        """Fail."""
        raise RuntimeError("no words")


VALUES: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "bytes": lambda: b"work",
    "int": lambda: 5,
    "nan": lambda: float("nan"),
    "huge": lambda: 10**5000,
    "list": list,
    "dict": dict,
    "generator": lambda: (one for one in ("work",)),
    "subclass": lambda: Text("work"),
    "unspeakable": Unprintable,
    "surrogate": lambda: "\ud800",
}

NAMES: dict[str, Call] = {
    "add queue": lambda s, v: s.add(T, v, [message()]),
    "poll queue": lambda s, v: s.poll(T, v),
    "fleet_poll queue": lambda s, v: s.fleet_poll(v),
    "ack queue": lambda s, v: s.ack(T, v, ["x"]),
    "nack queue": lambda s, v: s.nack(T, v, ["x"]),
    "release queue": lambda s, v: s.release(T, v, ["x"]),
    "extend queue": lambda s, v: s.extend(T, v, ["x"], lease_ms=5),
    "remove queue": lambda s, v: s.remove(T, v, [bytes(16)]),
    "get queue": lambda s, v: s.reads.get(T, v, bytes(16)),
    "peek queue": lambda s, v: s.reads.peek(T, v),
    "result queue": lambda s, v: s.reads.result(T, v, bytes(16)),
    "trace queue": lambda s, v: s.reads.trace(T, v, bytes(16)),
    "put_queue name": lambda s, v: put_queue(s, T, v),
    "pause_queue name": lambda s, v: pause_queue(s, T, v),
    "resume_queue name": lambda s, v: unpause_queue(s, T, v),
    "delete_queue name": lambda s, v: delete_queue(s, T, v),
    "purge name": lambda s, v: purge(s, T, v),
    "redrive queue": lambda s, v: s.redrive(T, v),
    "put_tenant name": put_tenant,
    "delete_tenant name": lambda s, v: s.erasure.delete_tenant(v),
    "add tenant": lambda s, v: s.add(v, Q, [message()]),
    "poll tenant": lambda s, v: s.poll(v, Q),
    "fleet_poll tenant": lambda s, v: s.fleet_poll(Q, tenants=[v]),
    "ack tenant": lambda s, v: s.ack(v, Q, ["x"]),
    "nack tenant": lambda s, v: s.nack(v, Q, ["x"]),
    "release tenant": lambda s, v: s.release(v, Q, ["x"]),
    "extend tenant": lambda s, v: s.extend(v, Q, ["x"], lease_ms=5),
    "remove tenant": lambda s, v: s.remove(v, Q, [bytes(16)]),
    "get tenant": lambda s, v: s.reads.get(v, Q, bytes(16)),
    "peek tenant": lambda s, v: s.reads.peek(v, Q),
    "result tenant": lambda s, v: s.reads.result(v, Q, bytes(16)),
    "trace tenant": lambda s, v: s.reads.trace(v, Q, bytes(16)),
    "put_queue tenant": lambda s, v: put_queue(s, v, Q),
    "pause_queue tenant": lambda s, v: pause_queue(s, v, Q),
    "resume_queue tenant": lambda s, v: unpause_queue(s, v, Q),
    "delete_queue tenant": lambda s, v: delete_queue(s, v, Q),
    "purge tenant": lambda s, v: purge(s, v, Q),
    "redrive tenant": lambda s, v: s.redrive(v, Q),
}

BATCHES: dict[str, Call] = {
    "add messages": lambda s, v: s.add(T, Q, v),
    "add a message": lambda s, v: s.add(T, Q, [v]),
    "ack receipts": lambda s, v: s.ack(T, Q, v),
    "ack a receipt": lambda s, v: s.ack(T, Q, [v]),
    "ack results": lambda s, v: s.ack(T, Q, ["x"], results=v),
    "ack a result": lambda s, v: s.ack(T, Q, ["x"], results=[v]),
    "nack receipts": lambda s, v: s.nack(T, Q, v),
    "nack a receipt": lambda s, v: s.nack(T, Q, [v]),
    "release receipts": lambda s, v: s.release(T, Q, v),
    "release a receipt": lambda s, v: s.release(T, Q, [v]),
    "extend receipts": lambda s, v: s.extend(T, Q, v, lease_ms=5),
    "extend a receipt": lambda s, v: s.extend(T, Q, [v], lease_ms=5),
    "remove ids": lambda s, v: s.remove(T, Q, v),
    "remove an id": lambda s, v: s.remove(T, Q, [v]),
    "get id": lambda s, v: s.reads.get(T, Q, v),
    "result id": lambda s, v: s.reads.result(T, Q, v),
    "trace id": lambda s, v: s.reads.trace(T, Q, v),
    "redrive ids": lambda s, v: s.redrive(T, Q, filter=RedriveFilter(ids=v)),
    "redrive an id": lambda s, v: s.redrive(T, Q, filter=RedriveFilter(ids=(v,))),  # type: ignore[arg-type]
    "redrive filter": lambda s, v: s.redrive(T, Q, filter=v),
}

FIELDS: dict[str, Call] = {
    "body": lambda s, v: s.add(T, Q, [NewMessage(body=v)]),
    "message priority": lambda s, v: s.add(T, Q, [message(priority=v)]),
    "message delay_ms": lambda s, v: s.add(T, Q, [message(delay_ms=v)]),
    "message ttl_ms": lambda s, v: s.add(T, Q, [message(ttl_ms=v)]),
    "message max_attempts": lambda s, v: s.add(T, Q, [message(max_attempts=v)]),
    "message key": lambda s, v: s.add(T, Q, [message(key=v)]),
    "message group": lambda s, v: s.add(T, Q, [message(group=v)]),
    "message attributes": lambda s, v: s.add(T, Q, [message(attributes=v)]),
    "message attribute": lambda s, v: s.add(T, Q, [message(attributes={"a": v})]),
    "poll max": lambda s, v: s.poll(T, Q, max=v),
    "poll wait_ms": lambda s, v: s.poll(T, Q, wait_ms=v),
    "poll lease_ms": lambda s, v: s.poll(T, Q, lease_ms=v),
    "fleet_poll max": lambda s, v: s.fleet_poll(Q, max=v),
    "fleet_poll wait_ms": lambda s, v: s.fleet_poll(Q, wait_ms=v),
    "fleet_poll lease_ms": lambda s, v: s.fleet_poll(Q, lease_ms=v),
    "nack delay_ms": lambda s, v: s.nack(T, Q, ["x"], delay_ms=v),
    "nack reason": lambda s, v: s.nack(T, Q, ["x"], reason=v),
    "extend lease_ms": lambda s, v: s.extend(T, Q, ["x"], lease_ms=v),
    "peek limit": lambda s, v: s.reads.peek(T, Q, limit=v),
    "peek cursor": lambda s, v: s.reads.peek(T, Q, cursor=v),
    "result wait_ms": lambda s, v: s.reads.result(T, Q, bytes(16), wait_ms=v),
    "ack result status": lambda s, v: s.ack(T, Q, ["x"], results=[Result(v, b"x", "x")]),
    "ack result value": lambda s, v: s.ack(T, Q, ["x"], results=[Result("completed", v)]),
    "ack result error": lambda s, v: s.ack(T, Q, ["x"], results=[Result("failed", None, v)]),
    "put_tenant weight": lambda s, v: put_tenant(s, "acme", weight=v),
    "put_tenant create_queues": lambda s, v: put_tenant(s, "acme", create_queues=v),
    "put_tenant unknown": lambda s, v: put_tenant(s, "acme", unknown=v),
    "put_queue lease_ms": lambda s, v: put_queue(s, T, Q, lease_ms=v),
    "put_queue max_attempts": lambda s, v: put_queue(s, T, Q, max_attempts=v),
    "put_queue ttl_ms": lambda s, v: put_queue(s, T, Q, ttl_ms=v),
    "put_queue dead_letter": lambda s, v: put_queue(s, T, "probe", dead_letter=v),
    "put_queue low_priority_every": lambda s, v: put_queue(s, T, Q, low_priority_every=v),
    "put_queue unknown": lambda s, v: put_queue(s, T, Q, unknown=v),
    "delete_tenant reason": lambda s, v: s.erasure.delete_tenant("acme", reason=v),
    "delete_queue reason": lambda s, v: delete_queue(s, T, Q, reason=v),
    "purge reason": lambda s, v: purge(s, T, Q, reason=v),
    "redrive rate": lambda s, v: s.redrive(T, Q, rate=v),
    "redrive source": lambda s, v: s.redrive(T, Q, filter=RedriveFilter(source=v)),
    "redrive reason": lambda s, v: s.redrive(T, Q, filter=RedriveFilter(reason=v)),
    "redrive limit": lambda s, v: s.redrive(T, Q, filter=RedriveFilter(limit=v)),
    "trim_journal upto_seq": lambda s, v: s.journal.trim(v),
}

# Where a value of the table is a right one: None for what may be left out, 5 for numbers.
ALLOWED: dict[str, set[str]] = {
    "ack results": {"None"},
    "ack a result": {"None"},
    "redrive ids": {"None", "list"},
    "redrive filter": {"None"},
    "body": {"bytes"},
    "message priority": {"int"},
    "message delay_ms": {"int"},
    "message ttl_ms": {"None", "int"},
    "message max_attempts": {"None", "int"},
    "message key": {"None"},
    "message group": {"None"},
    "message attributes": {"dict"},
    "poll max": {"int"},
    "poll wait_ms": {"int"},
    "poll lease_ms": {"None", "int"},
    "fleet_poll max": {"int"},
    "fleet_poll wait_ms": {"int"},
    "fleet_poll lease_ms": {"None", "int"},
    "peek limit": {"int"},
    "peek cursor": {"None"},
    "put_tenant weight": {"int"},
    "put_queue lease_ms": {"int"},
    "put_queue max_attempts": {"int"},
    "put_queue ttl_ms": {"None", "int"},
    "put_queue dead_letter": {"None"},
    "put_queue low_priority_every": {"int"},
    "redrive rate": {"None", "int"},
    "redrive source": {"None"},
    "redrive reason": {"None"},
    "redrive limit": {"None", "int"},
    "trim_journal upto_seq": {"int"},
}

CALLERS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "alice": lambda: "alice",
    "dict": dict,
    "int principal": lambda: Caller(principal=5),  # type: ignore[arg-type]
    "None principal": lambda: Caller(principal=None),  # type: ignore[arg-type]
    "subclass principal": lambda: Caller(principal=Text("alice")),
    "unspeakable principal": lambda: Caller(principal=Unprintable()),  # type: ignore[arg-type]
    "long principal": lambda: Caller(principal="x" * 100_000),
    "bytes remote": lambda: Caller(remote=b"::1"),  # type: ignore[arg-type]
    "nan request_id": lambda: Caller(request_id=float("nan")),  # type: ignore[arg-type]
}

BY_CALLER: dict[str, Call] = {
    "add": lambda s, c: s.add(T, Q, [message()], c),
    "poll": lambda s, c: s.poll(T, Q, caller=c),
    "fleet_poll": lambda s, c: s.fleet_poll(Q, caller=c),
    "ack": lambda s, c: s.ack(T, Q, ["x"], caller=c),
    "nack": lambda s, c: s.nack(T, Q, ["x"], caller=c),
    "release": lambda s, c: s.release(T, Q, ["x"], c),
    "extend": lambda s, c: s.extend(T, Q, ["x"], lease_ms=5, caller=c),
    "remove": lambda s, c: s.remove(T, Q, [bytes(16)], c),
    "put_tenant": lambda s, c: put_tenant(s, "other", c),
    "delete_tenant": lambda s, c: s.erasure.delete_tenant("acme", caller=c),
    "put_queue": lambda s, c: put_queue(s, T, "other", c),
    "pause_queue": lambda s, c: pause_queue(s, T, Q, c),
    "resume_queue": lambda s, c: unpause_queue(s, T, Q, c),
    "delete_queue": lambda s, c: delete_queue(s, T, Q, caller=c),
    "purge": lambda s, c: purge(s, T, Q, caller=c),
    "redrive": lambda s, c: s.redrive(T, Q, caller=c),
}


async def is_refused(call: Awaitable[Any]) -> bool:
    """Return whether a call raised an argument error, or returned one for every item."""
    try:
        reply = await call
    except TenantqError as error:
        return not isinstance(error, Unavailable)
    return isinstance(reply, list) and bool(reply) and all(getattr(one, "error", None) for one in reply)


async def serves(shard: Shard) -> None:
    """Check that a message can be added and polled."""
    await wait_until_idle(shard)
    assert shard.failure is None
    (added,) = await shard.add(T, "probe", [message("probe")])
    (got,) = await shard.poll(T, "probe")
    assert (got.raw_id, got.body) == (added.raw_id, b"probe")
    (outcome,) = await shard.ack(T, "probe", [got.receipt])
    assert outcome.ok


async def prepared(open_shard: OpenShard) -> Shard:
    """Return a shard with a tenant, and a queue with a message and a dead letter."""
    shard = await open_shard()
    await put_tenant(shard, "acme")
    await put_queue(shard, T, Q, max_attempts=1)
    await shard.add(T, Q, [message("dead")])
    (got,) = await shard.poll(T, Q)
    await shard.nack(T, Q, [got.receipt])
    await shard.add(T, Q, [message("kept")])
    return shard


@pytest.mark.parametrize("name", [*NAMES, *BATCHES, *FIELDS])
async def test_invalid_value_is_refused_and_damages_nothing(open_shard: OpenShard, name: str) -> None:
    """For any type in any argument, the shard keeps working and its directory opens again."""
    call = (NAMES | BATCHES | FIELDS)[name]
    shard = await prepared(open_shard)
    for kind, value in VALUES.items():
        if kind not in ALLOWED.get(name, set()):
            assert await is_refused(call(shard, value())), f"{name}: {kind} was taken"
            await serves(shard)
    await shard.close()
    shard = await open_shard()
    assert [one.body for one in (await shard.reads.peek(T, Q)).messages] == [b"kept"]
    assert sorted(tenants(shard)) == ["acme", T]
    assert sorted(queues(shard, T)) == ["probe", Q, "work-dlq"]
    await serves(shard)


@pytest.mark.parametrize("method", BY_CALLER)
async def test_caller_that_cannot_be_journaled_is_refused(open_shard: OpenShard, method: str) -> None:
    """Nothing is done or journaled for it."""
    shard = await prepared(open_shard)
    span = shard.journal.span
    for kind, caller in CALLERS.items():
        with pytest.raises(TenantqError):
            await BY_CALLER[method](shard, caller())
        assert shard.failure is None, kind
    await wait_until_idle(shard)
    assert shard.journal.span == span
    await serves(shard)
    await shard.close()
    await serves(await open_shard())


async def test_caller_with_a_lone_surrogate_damages_nothing(open_shard: OpenShard) -> None:
    """It is refused or journaled without it, and the directory opens again."""
    shard = await prepared(open_shard)
    for call in BY_CALLER.values():
        await is_refused(call(shard, Caller("\ud800", "\udfff", "\ud800")))
        await wait_until_idle(shard)
        assert shard.failure is None
    await serves(shard)
    await shard.close()
    await serves(await open_shard())


@pytest.mark.parametrize(
    "result",
    [
        Result("completed", Bytes(b"x")),
        Result("failed", None, Text("x")),
        Result(Text("completed"), b"x"),  # type: ignore[arg-type]
    ],
    ids=["value", "error", "status"],
)
async def test_result_of_a_wrong_type_is_refused_and_the_lease_continues(shard: Shard, result: Result) -> None:
    """A subclass of str or bytes could not be read back as given."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    with pytest.raises(TenantqError):
        await shard.ack(T, Q, [got.receipt], results=[result])
    (outcome,) = await shard.ack(T, Q, [got.receipt])
    assert outcome.ok
    await serves(shard)


async def test_reason_of_a_wrong_type_is_refused_and_the_lease_continues(shard: Shard) -> None:
    """This holds with a valid receipt too."""
    await shard.add(T, Q, [message()])
    (got,) = await shard.poll(T, Q)
    with pytest.raises(TenantqError):
        await shard.nack(T, Q, [got.receipt], reason=Text("why"))
    (outcome,) = await shard.ack(T, Q, [got.receipt])
    assert outcome.ok
    await serves(shard)


async def test_attributes_are_copied_at_the_call(shard: Shard) -> None:
    """The caller may reuse its dictionary while the message is queued."""
    attributes: dict[str, Any] = {"a": "b"}
    adding = asyncio.create_task(shard.add(T, Q, [message(attributes=attributes)]))
    await asyncio.sleep(0)
    attributes["a"] = object()
    attributes["more"] = "x"
    await adding
    (got,) = await shard.poll(T, Q)
    assert got.attributes == {"a": "b"}
    await serves(shard)


async def test_valid_messages_next_to_invalid_ones_are_added(shard: Shard) -> None:
    """Each message of a batch has its own outcome."""
    wrong: list[Any] = [message(priority=10**5000), None, message("good"), message(group=Text("g"))]
    replies = await shard.add(T, Q, wrong)
    assert [reply.error is None for reply in replies] == [False, False, True, False]
    assert [one.body for one in await shard.poll(T, Q, max=9)] == [b"good"]


async def test_methods_before_open_say_that_the_shard_is_closed(tmp_path: Path, clock: ManualClock) -> None:
    """The error is not about a missing attribute."""
    shard = Shard(tmp_path / "data", clock=clock)
    for call in BY_CALLER.values():
        with pytest.raises(Closed):
            await call(shard, Caller())
    for part in ("reads", "journal", "snapshots", "erasure", "state", "loop"):
        with pytest.raises(Closed):
            getattr(shard, part)
    assert not (tmp_path / "data").exists()


async def test_closing_a_shard_that_was_never_opened_does_nothing(tmp_path: Path, clock: ManualClock) -> None:
    """It can still be opened afterwards."""
    shard = Shard(tmp_path / "data", clock=clock)
    await shard.close()
    await shard.close()
    assert not (tmp_path / "data").exists()
    async with shard:
        await serves(shard)


async def test_flag_that_is_not_a_boolean_is_refused(shard: Shard) -> None:
    """If it were stored, the directory could not be opened again."""
    await put_queue(shard, T, Q)
    for wrong in ("yes", 1, None, object()):
        with pytest.raises(Invalid, match="force"):
            await delete_queue(shard, T, Q, force=wrong)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="dry_run"):
            await shard.redrive(T, Q, dry_run=wrong)  # type: ignore[arg-type]
    assert shard.reads.stats(T, Q).status == "active"


async def test_attributes_added_after_the_call_are_not_stored(shard: Shard) -> None:
    """An empty dictionary is copied too."""
    attributes: dict[str, str] = {}
    adding = asyncio.create_task(shard.add(T, Q, [NewMessage(body=b"x", attributes=attributes)]))
    await asyncio.sleep(0)
    attributes["later"] = object()  # type: ignore[assignment]
    await adding
    (got,) = await shard.poll(T, Q)
    assert got.attributes == {}
