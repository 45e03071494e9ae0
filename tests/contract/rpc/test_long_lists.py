"""Lists above the limit are refused by their length, before any element is read."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain import limits
from tenantq.domain.message import Outcome
from tenantq.errors import Invalid
from tenantq.rpc import replies, requests
from tenantq.rpc.schema import SCHEMA
from tenantq.runtime.loop_slices import SLICE_BYTES
from tests.contract.rpc.test_hostile import Raw, record

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.domain.message import NewMessage
    from tenantq.server import Server

CLAIMED = 8_000_000
NEW_MESSAGE = (3, 4)  # words of numbers and of pointers
ONE_TOO_MANY = limits.BATCH_MESSAGES_MAX + 1


def _look_at(_: object) -> NewMessage:
    raise Invalid("an element was looked at")


async def test_list_of_millions_in_few_bytes_is_refused_at_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty structs cost nothing on the wire; reading them would block everybody for a minute."""
    data = await record(server, ("add", {"messages": [{"body": b""}]}))
    tag = struct.pack("<IHH", 1 << 2, *NEW_MESSAGE)
    assert data.count(tag) == 1
    monkeypatch.setattr(requests, "_message", _look_at)
    raw = await Raw.open(server.rpc_port)
    raw.writer.write(data.replace(tag, struct.pack("<IHH", CLAIMED << 2, 0, 0)))
    said = b""
    while b"invalid" not in said:
        part = await asyncio.wait_for(raw.reader.read(65_536), 10)
        assert part, said
        said += part
    assert b"messages: 8000000 in one batch" in said
    raw.writer.close()


@pytest.mark.parametrize(
    ("read", "kind", "given", "told"),
    [
        (requests.add, "AddRequest", {"messages": [{}] * ONE_TOO_MANY}, "messages: 1001 in one batch"),
        (requests.add, "AddRequest", {"bodies": [b""] * ONE_TOO_MANY}, "bodies: 1001 in one batch"),
        (requests.settle, "ReleaseRequest", {"receipts": [""] * ONE_TOO_MANY}, "receipts: 1001 in one batch"),
        (requests.ack, "AckRequest", {"receipts": [""] * ONE_TOO_MANY}, "receipts: 1001 in one batch"),
        (requests.ack, "AckRequest", {"results": [{}] * ONE_TOO_MANY}, "results: 1001 in one batch"),
        (requests.nack, "NackRequest", {"receipts": [""] * ONE_TOO_MANY}, "receipts: 1001 in one batch"),
        (requests.extend, "ExtendRequest", {"receipts": [""] * ONE_TOO_MANY}, "receipts: 1001 in one batch"),
        (requests.remove, "RemoveRequest", {"ids": [""] * ONE_TOO_MANY}, "ids: 1001 in one batch"),
        (requests.fleet_poll, "FleetPollRequest", {"tenants": [""] * 100_001}, "tenants: must be a list of 1 to"),
        (requests.redrive, "RedriveRequest", {"ids": [""] * 100_001}, "filter: 100001 ids"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_every_list_of_a_request_is_limited(
    read: Callable[[Any], Any], kind: str, given: dict[str, Any], told: str
) -> None:
    """Limits and error texts are those of HTTP."""
    request = getattr(SCHEMA, kind).new_message(**given)
    with pytest.raises(Invalid, match=told):
        await read(request.as_reader())


async def test_large_batch_is_read_and_answered_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop gets turns in between, also while long replies are written."""
    pauses: list[str] = []

    async def pause(module: str) -> None:
        pauses.append(module)

    monkeypatch.setattr(requests, "next_slice", lambda: pause("read"))
    monkeypatch.setattr(replies, "next_slice", lambda: pause("write"))
    request = SCHEMA.AddRequest.new_message(bodies=[bytes(SLICE_BYTES)] * 4 + [b"x"] * 300)
    messages = (await requests.add(request.as_reader()))["messages"]
    assert [len(one.body) for one in messages] == [SLICE_BYTES] * 4 + [1] * 300
    assert pauses.count("read") >= 6
    results = SCHEMA.SettleReply.new_message()
    receipts = [str(number) for number in range(300)]
    connection: Any = None  # not used for this reply
    await replies.settled(results, (receipts, [Outcome(True)] * 300), connection)
    assert [one.receipt for one in results.results] == receipts
    assert pauses.count("write") == 2


async def test_message_with_too_many_attributes_is_refused_alone() -> None:
    """The other messages of its batch are added."""
    many = [{"name": str(number), "value": ""} for number in range(limits.ATTRIBUTES_MAX + 1)]
    request = SCHEMA.AddRequest.new_message(messages=[{"attributes": many}, {"attributes": many[:-1]}])
    refused, taken = (await requests.add(request.as_reader()))["messages"]
    assert "at most 32 names" in refused.message
    assert len(taken.attributes) == limits.ATTRIBUTES_MAX
