"""Unauthorized calls get 401 or 403 before their body is examined, and learn nothing about its errors."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from tests.contract.gates.test_over_http import ADMIN, Site, site

if TYPE_CHECKING:
    from tests.contract.http.raw_client import RawReply

__all__ = ["site"]  # the fixture

PACKED = ("Content-Encoding: gzip",)
WRONG = [
    ("POST", "/v1/tenants/acme/queues/work/messages", b"{bad"),
    ("POST", "/v1/tenants/acme/queues/work/messages", b'{"foo":1}'),
    ("POST", "/v1/tenants/acme/queues/work/messages", b'{"messages":[]}'),
    ("POST", "/v1/tenants/acme/queues/work/poll", b'{"max":0}'),
    ("POST", "/v1/tenants/acme/queues/bad%20name/poll", b"{}"),
    ("POST", "/v1/tenants/acme/queues/work/purge", b"{}"),
    ("GET", "/v1/tenants/acme/audit?foo=1", None),
    ("GET", "/v1/tenants/acme/audit?limit=0", None),
    ("PUT", "/v1/tenants/acme", b"[]"),
    ("GET", "/v1/audit?limit=0", None),
    ("POST", "/v1/backups", b"[]"),
]


def _code(reply: RawReply) -> tuple[int, str]:
    return reply.status, reply.json()["code"]


@pytest.mark.parametrize(("method", "path", "body"), WRONG)
async def test_38_unauthorized_call_is_refused_before_its_body_is_validated(
    site: Site, method: str, path: str, body: bytes | None
) -> None:
    """Only authorized callers learn what is wrong with the body."""
    await site.tenant("acme")
    other = await site.tenant("other")
    if not path.startswith("/v1/backups"):
        assert _code(await site.ask(method, path, body))[1] == "invalid"
    assert _code(await site.ask(method, path, body, token=None)) == (401, "unauthenticated")
    assert _code(await site.ask(method, path, body, token=other)) == (403, "forbidden")


async def test_38_unauthorized_call_with_an_invalid_body_is_journaled(site: Site) -> None:
    """It is DENIED in the audit trail of the tenant concerned."""
    await site.tenant("acme")
    other = await site.tenant("other")
    for body in (b"{bad", b'{"foo":1}', b'{"messages":[]}'):
        await site.ask("POST", "/v1/tenants/acme/queues/work/messages", body, token=other)
    site.server.service.admission.notes.flush()
    await site.wait_until_idle()
    rows = (await site.ask("GET", "/v1/tenants/acme/audit?action=add&result=DENIED")).json()["rows"]
    assert sum(row["count"] for row in rows) == 3


async def test_bodies_of_unauthenticated_calls_are_not_inflated(site: Site) -> None:
    """A few kilobytes that would become megabytes get 401."""
    await site.tenant("acme")
    bomb = gzip.compress(bytes(64 << 20))
    for path in ("/v1/tenants/acme/queues/work/messages", "/v1/poll"):
        assert _code(await site.ask("POST", path, bomb, token=None, headers=PACKED)) == (401, "unauthenticated")
        assert _code(await site.ask("POST", path, bomb, token=ADMIN, headers=PACKED)) == (413, "too_large")


async def test_parsing_stops_at_the_first_item_above_the_limit(site: Site) -> None:
    """Later items cost neither time nor memory."""
    await site.tenant("acme")
    items = {"messages": b"{}", "receipts": b'""', "results": b"{}"}
    for path, body in (
        ("messages", b'{"messages":[%s]}' % b",".join([items["messages"]] * 1_001 + [b"no json"])),
        ("ack", b'{"receipts":[""],"results":[%s]}' % b",".join([items["results"]] * 1_001 + [b"no json"])),
    ):
        reply = await site.ask("POST", f"/v1/tenants/acme/queues/work/{path}", body)
        assert _code(reply) == (422, "invalid")
        assert "allowed: 1 to 1000" in reply.json()["detail"]


async def test_only_batch_requests_may_be_large(site: Site) -> None:
    """A setting of two megabytes is refused by its length, before it is read."""
    large = b'{"weight":%s1}' % (b" " * (2 << 20))
    reply = await site.ask("PUT", "/v1/tenants/acme", large)
    assert _code(reply) == (413, "too_large")
    assert "1,048,576 bytes" in reply.json()["detail"]
