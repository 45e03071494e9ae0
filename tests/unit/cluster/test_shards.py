"""Several shards: which one has which tenant, how they authenticate, and how their answers are merged."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest
from prometheus_client.core import GaugeMetricFamily

from tenantq.cluster.audit_merge import merge_pages, parse_cursor
from tenantq.cluster.link import Link
from tenantq.cluster.metrics_merge import gather_metrics
from tenantq.cluster.peer_server import PeerRequest, PeerServer
from tenantq.cluster.tenant_directory import tenants_with_rows
from tenantq.domain.placement import Topology, TopologyShard
from tenantq.errors import Forbidden, Invalid, ShardDown, StoreDamaged, Unavailable
from tenantq.journal.record import JournalRow
from tenantq.service.audit_trail import AuditPage
from tenantq.service.metrics.text import MetricsText
from tenantq.store.shard_directories import (
    first_tenant_id,
    parent_of,
    remember_count,
    shard_count,
    shard_dir,
    shard_dirs,
)
from tests.unit.cluster.directories import directory_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TOPOLOGY = Topology((TopologyShard("0", "eu"), TopologyShard("1", "us"), TopologyShard("2", "us")))


def test_an_unknown_name_is_like_a_tenant_of_a_shard_that_does_not_run() -> None:
    """A shard that is down keeps its tenants."""
    running = {1}
    homes = {"theirs": 0, "other": 2}
    directory = directory_of(1, TOPOLOGY, homes, running.__contains__)
    assert (directory.find("theirs"), directory.find("other"), directory.find("nobodys")) == (0, 2, None)
    assert (directory.find("default"), directory.find("tenantq-probe-a")) == (0, 1)
    with pytest.raises(ShardDown, match="shard 0"):
        directory.check_all_run()
    running.add(0)
    directory.check_reachable("theirs")
    with pytest.raises(ShardDown, match="shard 2"):
        directory.check_reachable("other")
    with pytest.raises(ShardDown, match="shard 2"):
        directory.check_all_run()
    assert [directory.is_known(shard) for shard in (0, 1, 2, 3)] == [True, True, False, False]
    running.add(2)
    directory.check_all_run()


def test_default_has_a_row_of_the_first_shard_alone() -> None:
    """Tenants that every shard has for itself have none."""
    names = ["default", "acme", "tenantq-probe-a"]
    assert (tenants_with_rows(0, names), tenants_with_rows(1, names)) == (["default", "acme"], ["acme"])


def test_the_number_of_shards_is_remembered(tmp_path: Path) -> None:
    """One shard needs no file. An unreadable file is damage, not one shard."""
    assert (shard_count(tmp_path), shard_count(tmp_path / "new")) == (1, 1)
    remember_count(tmp_path, 3)
    shard_dir(tmp_path, 2).mkdir(parents=True)
    assert (shard_count(tmp_path), shard_dirs(tmp_path)) == (3, [tmp_path, tmp_path / "shards" / "2"])
    assert (parent_of(tmp_path / "shards" / "2"), parent_of(tmp_path)) == (tmp_path, None)
    assert [first_tenant_id(number) for number in (0, 1, 63)] == [1, (1 << 26) + 1, (63 << 26) + 1]
    for wrong in ("", "{}", '{"shards": 0}', '{"shards": 65}'):
        (tmp_path / "shards.json").write_text(wrong)
        with pytest.raises(StoreDamaged, match=r"shards\.json"):
            shard_count(tmp_path)


async def _answer(request: PeerRequest) -> bytes:
    if request.payload == b"refuse":
        raise Forbidden("not you")
    if request.payload == b"wait":
        stopped = asyncio.Event()
        request.on_stop = stopped.set
        await stopped.wait()
        return b"stopped"
    if request.payload == b"parts":

        async def parts() -> AsyncIterator[bytes]:
            for number in range(3):
                yield b"%d" % number

        request.parts = parts()
    return b"answer to " + request.payload


async def test_concurrent_requests_are_answered_independently() -> None:
    """With errors, parts on demand, and a stop message that ends a wait."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        server = PeerServer("secret", {"kind": _answer})
        await server.open(sock)
        up = asyncio.Event()

        async def begun(_: Link) -> None:
            up.set()

        link = Link(1, sock.getsockname()[1], ("secret", 7), begun)
        with pytest.raises(ShardDown):
            link.begin("kind", b"")
        link.start()
        await up.wait()
        waiting = link.begin("kind", b"wait")
        assert await asyncio.gather(*(link.begin("kind", b"%d" % n).within(None) for n in range(50))) == [
            b"answer to %d" % n for n in range(50)
        ]
        with pytest.raises(Forbidden, match="not you"):
            await link.begin("kind", b"refuse").within(None)
        waiting.stop(is_gone=False)
        assert await waiting.reply == b"stopped"
        pending = link.begin("kind", b"parts")
        assert await pending.reply == b"answer to parts"
        assert [part async for part in pending.parts()] == [b"0", b"1", b"2"]
        last = link.begin("kind", b"wait")
        await server.close()
        with pytest.raises(ShardDown):
            await last.reply
        await link.close()


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1\x05", b"\0\0\0\2\xc1\xc1", b"\xff\xff\xff\xff"])
async def test_unauthenticated_connections_are_closed(said: bytes) -> None:
    """Whatever they send, and without reading more than one frame."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        server = PeerServer("secret", {})
        await server.open(sock)
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(said)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        await server.close()


async def test_a_shard_with_the_wrong_secret_is_disconnected() -> None:
    """Its requests are not read."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        sock.setblocking(False)
        server = PeerServer("secret", {"kind": _answer})
        await server.open(sock)
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        hello = b"\x93\x00\xa5wrong\x01"
        writer.write(len(hello).to_bytes(4) + hello)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        await server.close()


def _row(shard: str, seq: int, ts: int) -> JournalRow:
    return JournalRow(shard, seq, 0, ts, "", "", "op", "", "", 0, 0, 0, 0, 0, "ok", "", "", "", "", 1, "")


@pytest.mark.parametrize("newest_first", [False, True])
def test_audit_pages_of_several_shards_are_merged_by_time(newest_first: bool) -> None:  # noqa: FBT001  # a parameter of the test
    """Every row appears once and in order with any page size. A cursor of another kind is refused."""
    journals = [[_row(f"{n}", seq, seq * (n + 2) * 10) for seq in range(1, 9)] for n in range(3)]
    for limit in (1, 3, 7, 100):
        cursor, seen = None, list[JournalRow]()
        while True:
            places = parse_cursor(cursor, 3, newest_first=newest_first)
            pages = [
                _page(rows, place, 4, newest_first=newest_first) for rows, place in zip(journals, places, strict=True)
            ]
            page = merge_pages(pages, places, limit, newest_first=newest_first)
            seen += page.rows
            cursor = page.cursor
            if cursor is None:
                break
        times = [row.ts for row in seen]
        assert times == sorted(times, reverse=newest_first)
        assert {(row.shard, row.seq) for row in seen} == {(row.shard, row.seq) for rows in journals for row in rows}
        assert len(seen) == 24
    for wrong in ("1.2", "all:", "all:W10=", "all:!!"):
        with pytest.raises(Invalid, match="cursor"):
            parse_cursor(wrong, 3, newest_first=newest_first)


def _page(rows: list[JournalRow], place: str, limit: int, *, newest_first: bool) -> AuditPage:
    """Return a page of one journal, like its shard would."""
    if place == "-":
        return AuditPage([])
    ordered = sorted(rows, key=lambda row: row.seq, reverse=newest_first)
    if place:
        last = int(place.removeprefix("-").partition(".")[0])
        ordered = [row for row in ordered if (row.seq < last if newest_first else row.seq > last)]
    found = ordered[:limit]
    sign = "-" if newest_first else ""
    return AuditPage(found, f"{sign}{found[-1].seq}.0" if len(ordered) > limit else None)


async def test_metrics_of_several_shards_are_merged() -> None:
    """Each family appears once, with the samples of all shards, and a shard that does not answer is reported."""

    async def ask(number: int, reader: str, name: str, share: int) -> bytes:
        assert (reader, share) == ("prometheus", 3)
        if number == 2:
            raise Unavailable
        text = MetricsText(name)
        text.start("a_total", "counter", "What.")
        text.add("a_total", text.labels(x="1"), 2)
        text.add_family(GaugeMetricFamily("b", "That.", value=3))
        return await text.encoded()

    merged = (await gather_metrics(ask, "prometheus", {0: "0", 1: "1", 2: "2"})).decode().splitlines()
    assert merged[:8] == [
        "# HELP a_total What.", "# TYPE a_total counter", 'a_total{shard="0",x="1"} 2', 'a_total{shard="1",x="1"} 2',
        "# HELP b That.", "# TYPE b gauge", 'b{shard="0"} 3.0', 'b{shard="1"} 3.0',
    ]  # fmt: skip
    assert merged[-3:] == [f'tenantq_shard_up{{shard="{n}"}} {int(n < 2)}' for n in range(3)]
