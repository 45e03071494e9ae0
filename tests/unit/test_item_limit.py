"""The items of a large body are counted before it is decoded."""

from __future__ import annotations

import json

import msgspec
import pytest

from tenantq.errors import Invalid
from tenantq.http import route as route_module
from tenantq.http.handlers import messages
from tenantq.http.item_limit import check_items
from tenantq.http.route import Route
from tenantq.wire.messages import AckRequest, AddRequest

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
    """Whatever its items are, and whatever its strings contain."""
    json.loads(body)
    with pytest.raises(Invalid, match="too many items"):
        await check_items(body, _MANY)


@pytest.mark.parametrize("text", [",", '",', "\\,", '\\",', "x" * 300_000 + ",", "\\" * 262_139 + ",,,,"])
async def test_commas_in_strings_do_not_count(text: str) -> None:
    """Strings may be longer than a slice, and may end anywhere in one."""
    await check_items(json.dumps({"body": text * 200, "next": [text] * 99}).encode(), _MANY)


async def test_a_refused_list_never_reaches_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight million receipts would become eight million objects."""
    route = Route("POST", "/x", messages.ack, tag="", request=AckRequest)
    monkeypatch.setattr(Route, "decode", lambda *_: pytest.fail("decoded"))
    with pytest.raises(Invalid, match="too many items"):
        await route.decode_large(b'{"receipts":[' + b",".join([b'""'] * 60_000) + b"]}")


async def test_a_large_batch_decodes_to_the_same_request_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages keep their order, and the loop gets turns in between."""
    pauses = []

    async def pause() -> None:
        pauses.append(1)

    monkeypatch.setattr("tenantq.http.sliced_lists.next_slice", pause)
    route = Route("POST", "/x", messages.add, tag="", request=AddRequest)
    body = json.dumps(
        {"messages": [{"body": "x" * 100_000, "priority": n % 10} for n in range(30)], "key": "k"}
    ).encode()
    assert msgspec.to_builtins(await route.decode_large(body)) == msgspec.to_builtins(route.decode(body))
    assert len(pauses) >= 10
    assert route_module.ITEMS_MAX >= 1_000 * 43


@pytest.mark.parametrize("bad", [{"body": 1}, {"bodi": "x"}, {"priority": "x"}])
async def test_a_large_batch_is_refused_with_the_same_error(bad: dict[str, object]) -> None:
    """Decoding in slices does not change what a caller reads."""
    route = Route("POST", "/x", messages.add, tag="", request=AddRequest)
    body = json.dumps({"messages": [{"body": "x" * 100_000}, bad]}).encode()
    with pytest.raises(Invalid) as expected:
        route.decode(body)
    with pytest.raises(Invalid) as raised:
        await route.decode_large(body)
    assert str(raised.value) == str(expected.value)
