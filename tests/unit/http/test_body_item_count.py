"""The items of a large body are counted before it is decoded."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pytest

from tenantq.errors import Invalid, TenantqError
from tenantq.http import json_list_scanner
from tenantq.http import route as route_module
from tenantq.http.body_item_count import check_item_count
from tenantq.http.handlers import messages
from tenantq.http.route import Route
from tenantq.http.sliced_decoding import SlicedDecoder
from tenantq.wire.messages import AddRequest
from tenantq.wire.queues import RedriveRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

_MANY = 100


@pytest.mark.parametrize(
    "body",
    [
        b'{"receipts":[' + b",".join([b'""'] * 200) + b"]}",
        b'{"results":[' + b",".join([b"null"] * 200) + b"]}",
        b'{"messages":[' + b",".join([b"{}"] * 200) + b"]}",
        b'{"a\\\\":{' + b",".join(b'"%d\\\\":"\\""' % n for n in range(200)) + b"}}",
        b'{"long":"' + b"x,\\\\" * 200_000 + b'","receipts":[' + b",".join([b'""'] * 200) + b"]}",
    ],
)
async def test_a_list_that_is_too_long_is_refused(body: bytes) -> None:
    """With any items and any strings in them."""
    json.loads(body)
    with pytest.raises(Invalid, match="too many items"):
        await check_item_count(body, _MANY)


@pytest.mark.parametrize("text", [",", '",', "\\,", '\\",', "x" * 300_000 + ",", "\\" * 262_139 + ",,,,"])
async def test_commas_in_strings_do_not_count(text: str) -> None:
    """Strings may be longer than a slice and end anywhere in one."""
    await check_item_count(json.dumps({"body": text * 200, "next": [text] * 99}).encode(), _MANY)


async def test_a_refused_list_never_reaches_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight million receipts would become eight million objects."""
    route = Route("POST", "/x", messages.ack, tag="", scope="tenant")
    monkeypatch.setattr(Route, "decode", lambda *_: pytest.fail("decoded"))
    with pytest.raises(Invalid, match="too many items"):
        await route.decode_large(b'{"receipts":[' + b",".join([b'""'] * 60_000) + b"]}")


async def test_a_large_batch_decodes_to_the_same_request_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages keep their order, and the loop gets turns in between."""
    pauses = []

    async def pause() -> None:
        pauses.append(1)

    monkeypatch.setattr("tenantq.http.sliced_decoding.next_slice", pause)
    route = Route("POST", "/x", messages.add, tag="", scope="tenant")
    body = json.dumps(
        {"messages": [{"body": "x" * 100_000, "priority": n % 10} for n in range(30)], "key": "k"}
    ).encode()
    assert msgspec.to_builtins(await route.decode_large(body)) == msgspec.to_builtins(route.decode(body))
    assert len(pauses) >= 10
    assert route_module.ITEMS_MAX >= 1_000 * 43


@pytest.mark.parametrize("bad", [{"body": 1}, {"bodi": "x"}, {"priority": "x"}])
async def test_a_large_batch_is_refused_with_the_same_error(bad: dict[str, object]) -> None:
    """Decoding in slices does not change the error."""
    route = Route("POST", "/x", messages.add, tag="", scope="tenant")
    body = json.dumps({"messages": [{"body": "x" * 100_000}, bad]}).encode()
    with pytest.raises(Invalid) as expected:
        route.decode(body)
    with pytest.raises(Invalid) as raised:
        await route.decode_large(body)
    assert str(raised.value) == str(expected.value)


_VALUES = ["", "x" * 300, 'a"b\\', "[{,", "\\" * 257, "é", "]}" * 200]


def _random_body(random: Random) -> bytes:
    """Return an add request whose strings would confuse a naive search for brackets, commas and quotes."""
    messages = [
        {
            "body": random.choice(_VALUES),
            "attributes": {f"k{n}": random.choice(_VALUES) for n in range(random.randrange(3))},
        }
        for _ in range(random.randrange(12))
    ]
    members = [("messages", messages), *([("key", "k,[")] if random.random() < 0.5 else [])]
    random.shuffle(members)
    return json.dumps(dict(members), indent=random.choice((None, None, 1)), ensure_ascii=random.random() < 0.5).encode()


async def test_any_body_decodes_in_slices_like_it_does_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For slices of any size. Truncated or changed by a byte, it is accepted or refused in the same way."""
    random, route = Random(5), Route("POST", "/x", messages.add, tag="", scope="tenant")
    accepted = 0
    for _ in range(600):
        monkeypatch.setattr("tenantq.http.json_list_scanner.SLICE_BYTES", random.choice((1, 2, 7, 300, 1 << 18)))
        monkeypatch.setattr("tenantq.http.sliced_decoding.SLICE_BYTES", random.choice((1, 100, 1 << 18)))
        body = bytearray(_random_body(random))
        change = random.randrange(4)
        if change == 1:
            body[random.randrange(len(body))] = random.choice(b'{}[],:"\\ 0')
        elif change == 2:
            del body[random.randrange(len(body)) :]
        elif change == 3:
            at = random.randrange(len(body))
            body[at:at] = random.choice((b",", b"]", b"}", b'"', b" \n", b'"messages":[],', b"[]", b"null"))
        expected = await _outcome_of(_at_once(route, bytes(body)))
        found = await _outcome_of(route.decode_large(bytes(body)))
        assert found == expected, bytes(body)
        accepted += not isinstance(expected, str)
    assert accepted > 100


async def _at_once(route: Route, body: bytes) -> object:
    return route.decode(body)


async def _outcome_of(decoding: Awaitable[object]) -> object:
    """Return what was decoded, or the error code."""
    try:
        return msgspec.to_builtins(await decoding)
    except TenantqError as error:
        return error.code


async def test_no_loop_turn_processes_more_than_a_slice_of_a_large_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when its items are counted nor when they are decoded, at any depth."""
    turns = [Counter[str]()]

    async def turn() -> None:
        turns.append(Counter())

    def counted(kind: str, work: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            result = work(*arguments)
            turns[-1][kind] += size(result, *arguments)
            return result

        return run

    monkeypatch.setattr("tenantq.http.sliced_decoding.next_slice", turn)
    passed = counted("passed", json_list_scanner._pass_string, lambda result, _, at: result[0] - at)
    monkeypatch.setattr(json_list_scanner, "_pass_string", passed)
    for request, body in (
        (AddRequest, {"messages": [{"body": "x" * (1 << 20)}] * 6}),
        (RedriveRequest, {"filter": {"ids": [str(UUID(int=n)) for n in range(30_000)]}}),
    ):
        decoder = SlicedDecoder(request)
        ((path, field),) = decoder._lists.items()
        decode = counted("decoded", field.decode, lambda _, text: len(text))
        decoder._lists[path] = field._replace(decode=decode)
        turns[:] = [Counter()]
        decoded = msgspec.to_builtins(await decoder.decode(json.dumps(body).encode()))
        assert len(next(_lists_in(decoded))) == len(next(_lists_in(body)))
        assert len(turns) > 12
        assert max(one["passed"] for one in turns) <= 2 * (1 << 20)
        assert max(one["decoded"] for one in turns) <= (1 << 20) + 100


def _lists_in(value: dict[str, Any]) -> Iterator[list[Any]]:
    for one in value.values():
        if isinstance(one, list):
            yield one
        elif isinstance(one, dict):
            yield from _lists_in(one)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"messages":[],"key":"' + b"x" * (1 << 21) + b'"}', "too_large"),
        (b'{"messages":[' + b" " * (1 << 24) + b"]}", "too_large"),
        (b'{"messages":[{"body":"x"},]}' + b" " * 100, "invalid"),
        (b'{"messages":[{"body":"x"}],"messages":[{"body":"y"}]}', "invalid"),
        (b'{"messages":5}', "invalid"),
        (b'{"m\\u0065ssages":[{"body":"x"}]}', None),
    ],
)
async def test_a_large_body_of_another_shape_is_bounded_too(body: bytes, code: str | None) -> None:
    """Bytes outside the lists, a huge item, an empty one, a duplicate list, no list, and one with an escaped name."""
    route = Route("POST", "/x", messages.add, tag="", scope="tenant")
    outcome = await _outcome_of(route.decode_large(bytes(body)))
    assert outcome == code if code else isinstance(outcome, dict)
