"""Who may not make a call is told that, and nothing else: neither is what it brings looked at, nor what is wrong with it said."""

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
async def test_38_a_stranger_is_refused_before_what_is_wrong(
    site: Site, method: str, path: str, body: bytes | None
) -> None:
    """Without a credential, and with one that is allowed nothing there; only who may do it is told what is wrong."""
    await site.tenant("acme")
    other = await site.tenant("other")
    if not path.startswith("/v1/backups"):
        assert _code(await site.ask(method, path, body))[1] == "invalid"
    assert _code(await site.ask(method, path, body, token=None)) == (401, "unauthenticated")
    assert _code(await site.ask(method, path, body, token=other)) == (403, "forbidden")


async def test_38_a_refused_call_leaves_its_row_whatever_is_wrong_with_it(site: Site) -> None:
    """Denied, in the audit trail of the tenant that it was about."""
    await site.tenant("acme")
    other = await site.tenant("other")
    for body in (b"{bad", b'{"foo":1}', b'{"messages":[]}'):
        await site.ask("POST", "/v1/tenants/acme/queues/work/messages", body, token=other)
    site.server.service.admission.notes.flush()
    await site.wait_until_idle()
    rows = (await site.ask("GET", "/v1/tenants/acme/audit?action=add&result=DENIED")).json()["rows"]
    assert sum(row["count"] for row in rows) == 3


async def test_what_strangers_send_is_not_unpacked(site: Site) -> None:
    """A few kilobytes that would be megabytes are refused for who sends them."""
    await site.tenant("acme")
    bomb = gzip.compress(bytes(64 << 20))
    for path in ("/v1/tenants/acme/queues/work/messages", "/v1/poll"):
        assert _code(await site.ask("POST", path, bomb, token=None, headers=PACKED)) == (401, "unauthenticated")
        assert _code(await site.ask("POST", path, bomb, token=ADMIN, headers=PACKED)) == (413, "too_large")


async def test_a_list_of_millions_ends_at_the_first_too_many(site: Site) -> None:
    """Whatever else it holds: neither time nor memory goes into making objects of them."""
    await site.tenant("acme")
    items = {"messages": b"{}", "receipts": b'""', "results": b"{}"}
    for path, body in (
        ("messages", b'{"messages":[%s]}' % b",".join([items["messages"]] * 1_001 + [b"no json"])),
        ("ack", b'{"receipts":[""],"results":[%s]}' % b",".join([items["results"]] * 1_001 + [b"no json"])),
    ):
        reply = await site.ask("POST", f"/v1/tenants/acme/queues/work/{path}", body)
        assert _code(reply) == (422, "invalid")
        assert "allowed: 1 to 1000" in reply.json()["detail"]


async def test_only_batches_may_be_large(site: Site) -> None:
    """A setting of two megabytes is refused by its length, before it is read."""
    large = b'{"weight":%s1}' % (b" " * (2 << 20))
    reply = await site.ask("PUT", "/v1/tenants/acme", large)
    assert _code(reply) == (413, "too_large")
    assert "1,048,576 bytes" in reply.json()["detail"]
