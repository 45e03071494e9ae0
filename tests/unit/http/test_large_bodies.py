"""Large bodies: decoded in slices with the same result, decompressed only as far as needed, and processed in turns."""

from __future__ import annotations

import asyncio
import gzip
import json
from random import Random
from typing import Any

import msgspec
import pytest

from tenantq.domain.limits import BATCH_MESSAGES_MAX
from tenantq.errors import Invalid, TenantqError
from tenantq.http import inflate as inflate_module
from tenantq.http.inflate import inflate
from tenantq.http.large_bodies import LargeBodies
from tenantq.http.route import Route
from tenantq.http.routes import ROUTES
from tenantq.wire.exports import ImportRequest
from tenantq.wire.messages import AckRequest, AddRequest, FleetPollRequest

_OF = {route.request: route for route in ROUTES if isinstance(route.request, type)}
_PACKED = gzip.compress(b"abc" * 1_000)
_CUT = [*(_PACKED[at : at + 1] for at in range(15)), _PACKED[15:]]
_MESSAGES = [{"body": f"text {n}", "attributes": {"n": str(n)}} for n in range(1_000)]


def _with(at: int, **fields: object) -> list[dict[str, Any]]:
    return [*_MESSAGES[:at], {**_MESSAGES[at], **fields}, *_MESSAGES[at + 1 :]]


async def _outcome(route: Route, body: bytes, *, large: bool) -> object:
    try:
        return msgspec.to_builtins(await route.decode_large(body) if large else route.decode(body))
    except TenantqError as error:
        return type(error), error.message


@pytest.mark.parametrize(
    ("request_type", "value"),
    [
        (AddRequest, {"messages": _MESSAGES}),
        (AddRequest, {"messages": _MESSAGES, "key": "once"}),
        (AddRequest, {"messages": _MESSAGES, "key": ""}),
        (AddRequest, {"messages": _MESSAGES, "other": 1}),
        (AddRequest, {"messages": _with(700, priority="high")}),
        (AddRequest, {"messages": _with(999, color="red")}),
        (AddRequest, {"messages": []}),
        (AddRequest, {"messages": None}),
        (AddRequest, {"key": "x"}),
        (AddRequest, [1]),
        (AckRequest, {"receipts": ["r"] * 1_000}),
        (AckRequest, {"receipts": ["r"] * 1_000, "results": [{"status": "completed", "value": "v"}] * 1_000}),
        (AckRequest, {"receipts": ["r", 7]}),
        (FleetPollRequest, {"queue": "work", "tenants": [f"tenant-{n}" for n in range(2_000)]}),
        (FleetPollRequest, {"queue": "work", "tenants": ["acme", "not a name"]}),
        (ImportRequest, {"export": "0" * 32, "part": 1, "messages": [{"id": "x"}]}),
    ],
)
async def test_a_body_decoded_in_slices_gives_the_same_result(request_type: type, value: object) -> None:
    """The same request, or the same error with the item's position."""
    route, body = _OF[request_type], json.dumps(value).encode()
    assert await _outcome(route, body, large=True) == await _outcome(route, body, large=False)


@pytest.mark.parametrize("end", [b"", b"]", b'}]}"', b"\xff", b'{"body":"\xff"}]}'])
async def test_a_malformed_body_is_refused_in_slices_too(end: bytes) -> None:
    """As invalid JSON, wherever it is malformed."""
    route, body = _OF[AddRequest], json.dumps({"messages": _MESSAGES[1:]}).encode()[:-2] + b"," + end
    refused = await _outcome(route, body, large=True)
    assert isinstance(refused, tuple)
    assert "body:" in refused[1]


@pytest.mark.parametrize("item", [b"{}", b'{"body":"x"}'])
def test_the_smallest_body_with_one_item_too_many_is_refused(item: bytes) -> None:
    """Small bodies are decoded without counting. Not one of them has more items than a batch may have."""
    route = _OF[AddRequest]
    allowed = b'{"messages":[%s]}' % b",".join([item] * BATCH_MESSAGES_MAX)
    assert len(route.decode(allowed).messages) == BATCH_MESSAGES_MAX
    with pytest.raises(Invalid, match="too many items in one batch"):
        route.decode(allowed.replace(b"[", b"[%s," % item))


async def test_a_body_with_too_many_items_is_not_fully_decompressed() -> None:
    """Only until the limit is exceeded."""
    held: list[int] = []
    data = b'{"receipts":[' + b'"",' * 4_000_000 + b'""]}'
    with pytest.raises(Invalid, match="too many items"):
        await inflate([gzip.compress(data)], len(data), 50_000, held.append)
    assert sum(held) < len(data) // 10


async def test_commas_inside_strings_are_not_counted_as_items() -> None:
    """Regardless of their number."""
    data = json.dumps({"body": ',"' * 500_000}).encode()
    assert await inflate([gzip.compress(data)], len(data), 5, lambda _: None) == data


async def test_a_compressed_body_is_decompressed_from_its_parts() -> None:
    """For any split; the output may be larger or smaller than a step."""
    rng = Random(3)
    for data in (rng.randbytes(700_000), bytes(3_000_000) + rng.randbytes(100_000)):
        packed = gzip.compress(data)
        for size in (7_000, 65_536, len(packed)):
            parts = [packed[at : at + size] for at in range(0, len(packed), size)]
            assert await inflate(parts, len(data), 10**9, lambda _: None) == data


@pytest.mark.parametrize("parts", [[b""], [_PACKED[:-1]], [_PACKED, b"x"], [*_CUT, b"x"], [*_CUT, *_CUT]])
async def test_anything_but_one_complete_gzip_stream_is_refused(parts: list[bytes]) -> None:
    """Also if the rest arrives in later parts."""
    with pytest.raises(TenantqError, match="one complete gzip stream"):
        await inflate(parts, 1 << 20, 10**9, lambda _: None)


async def test_a_long_part_is_decompressed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every step, zlib copies all input that it has not used."""
    given: list[int] = []
    step = inflate_module._step

    def noted(unpacker: Any, data: bytes) -> bytes:
        given.append(len(data))
        return step(unpacker, data)

    monkeypatch.setattr(inflate_module, "_step", noted)
    data = Random(4).randbytes(3 << 20)
    assert await inflate([gzip.compress(data)], len(data), 10**9, lambda _: None) == data
    assert max(given) <= inflate_module.AT_ONCE_BYTES


async def test_callers_take_turns_for_the_memory_of_large_bodies() -> None:
    """A caller with many large bodies does not make another wait behind all of them."""
    bodies, order = LargeBodies(100), list[str]()

    async def process(caller: str, size: int) -> None:
        taken = await bodies.enter(caller, size)
        order.append(caller)
        assert taken <= 100
        await asyncio.sleep(0)
        bodies.leave(taken)

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(process("loud", 80))
        group.create_task(process("quiet", 500))
    assert order == ["loud", "loud", "quiet", "loud", "loud", "loud"]
    assert await bodies.enter("next", 100) == 100


async def test_a_caller_that_leaves_frees_its_place() -> None:
    """Before its turn and during it."""
    bodies = LargeBodies(100)
    taken = await bodies.enter("first", 100)
    waiting = [asyncio.ensure_future(bodies.enter("second", 60)) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    bodies.leave(taken)
    assert await waiting[1] == 60
    third = asyncio.ensure_future(bodies.enter("third", 60))
    await asyncio.sleep(0)
    bodies.leave(60)
    third.cancel()
    await asyncio.sleep(0)
    assert await bodies.enter("fourth", 100) == 100
