"""The doctor and the journal check read a shard that a server owns: no false findings, and no trace left behind."""

from __future__ import annotations

import asyncio
from secrets import token_bytes
from typing import TYPE_CHECKING

import pytest

from tenantq.doctor import running_shard
from tenantq.doctor.live_journal_check import LiveJournalCheck
from tenantq.doctor.store_check import examine
from tenantq.errors import StoreFailed, Unavailable
from tenantq.runtime.clock import SystemClock
from tenantq.vault.envelope import FORMAT, OVERHEAD_BYTES
from tests.administration import delete_queue, put_data_key, put_queue
from tests.redis_servers import OnRedis, RedisServer, free_port
from tests.shards import Q, T, data_key_row, message
from tests.verbs import Shard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path
    from typing import Any

    from tenantq.doctor.report import DoctorReport
    from tenantq.domain.message import NewMessage

FIFO, BRIEF = "orders.fifo", "brief"


@pytest.fixture
def opener(tmp_path: Path, redis_server: RedisServer) -> OnRedis:
    """Return an opener that can own the store and read it."""
    return OnRedis(redis_server, tmp_path / "one", name="running", lease_ms=30_000)


@pytest.fixture
async def shard(opener: OnRedis, redis_server: RedisServer) -> AsyncIterator[Shard]:
    """Return a shard with messages in several states."""
    shard = Shard(opener.path, open_store=opener, clock=SystemClock())
    await shard.open()
    await put_queue(shard, T, Q, max_attempts=2)
    await put_queue(shard, T, BRIEF)
    await _work(shard, 0)
    yield shard
    await shard.close()
    redis_server.client().flushall()


async def _work(shard: Shard, number: int) -> None:
    """Change rows of every family."""
    new = [message(f"{number}-{i}", priority=i % 3, key=f"{number}-{i}", ttl_ms=60_000) for i in range(10)]
    await shard.add(T, Q, [*new, message("later", delay_ms=60_000), message("soon", ttl_ms=20)])
    await shard.add(T, FIFO, [message(f"f{i}", group=f"g{i % 2}") for i in range(6)])
    got = await shard.poll(T, Q, max=8)
    await shard.ack(T, Q, [one.receipt for one in got[:5]])
    await shard.nack(T, Q, [one.receipt for one in got[5:7]], delay_ms=0)
    await shard.ack(T, FIFO, [one.receipt for one in await shard.poll(T, FIFO, max=3)])


def _examine(opener: OnRedis, path: Path) -> DoctorReport:
    return examine(path, open_store=opener.while_owned)


async def test_a_busy_shard_has_no_findings(shard: Shard, opener: OnRedis, tmp_path: Path) -> None:
    """Commits, journal trims, and created and deleted queues do not confuse the check."""
    over = asyncio.Event()

    async def work() -> int:
        number = 0
        while not over.is_set():
            number += 1
            await _work(shard, number)
            await put_queue(shard, T, f"q{number}")
            await shard.add(T, f"q{number}", [message()])
            if number > 3:
                await delete_queue(shard, T, f"q{number - 3}", force=True)
            first, last = shard.journal.span
            await shard.journal.trim(max(first, last - 5))
        return number

    worker = asyncio.create_task(work())
    try:
        for _ in range(6):
            report = await asyncio.to_thread(_examine, opener, tmp_path / "elsewhere")
            assert report.findings == []
            assert report.unchecked == []
            assert report.figures.messages > 0
            journal = await asyncio.to_thread(_verify, opener, tmp_path / "elsewhere")
            assert journal == []
    finally:
        over.set()
        rounds = await worker
    assert rounds > 1
    assert not (tmp_path / "elsewhere").exists()


def _verify(opener: OnRedis, path: Path) -> list[Any]:
    check = LiveJournalCheck(path, None, opener.while_owned)
    try:
        assert check.is_running
        report = check.run()
    finally:
        check.close()
    assert report.records > 0
    return report.findings


async def test_changes_after_opening_are_not_findings(shard: Shard, opener: OnRedis, tmp_path: Path) -> None:
    """Queues are read later than the catalog, so they may be deleted, new or changed by then."""
    opened = opener.while_owned(tmp_path)
    for number in range(2):
        await put_data_key(shard, 1, number, data_key_row(number))
    await shard.add(T, BRIEF, [_encrypted(1)])
    await _work(shard, 1)
    await delete_queue(shard, T, FIFO, force=True)
    await shard.journal.trim(shard.journal.span[1])
    report = examine(tmp_path, open_store=lambda _: opened)
    assert report.findings == []
    assert (report.figures.queues, report.figures.encrypted) == (3, 1)
    await shard.add(T, BRIEF, [_encrypted(2)])
    assert [one.kind for one in _examine(opener, tmp_path).findings] == ["keys"]


def _encrypted(number: int) -> NewMessage:
    """Return a message as if it were encrypted with a data key."""
    return message(bytes([FORMAT]) + number.to_bytes(4) + bytes(OVERHEAD_BYTES), encrypted=True, raw_id=token_bytes(16))


async def test_examination_changes_nothing(
    shard: Shard, opener: OnRedis, redis_server: RedisServer, tmp_path: Path
) -> None:
    """No key appears, changes or disappears, and the owner stays the owner."""
    client = redis_server.client()

    def content() -> dict[bytes, object]:
        state = b"t:{running:0}:s"
        found = {key: client.dump(key) for key in client.keys("*") if key != state}
        return {**found, state: client.hmget(state, "epoch", "commit", "holder", "id")}

    before = content()
    assert _examine(opener, tmp_path / "elsewhere").clean
    assert _verify(opener, tmp_path / "elsewhere") == []
    assert content() == before
    await _work(shard, 1)


def _lose_place(client: Any, key: Callable[[str], bytes]) -> None:
    client.zremrangebyrank(key(":vi"), 0, 0)


def _tear_message(client: Any, key: Callable[[str], bytes]) -> None:
    name = client.zrange(key(":m:i"), 0, 0)[0]
    client.hset(key(":m"), name, b"torn")


def _lose_lease(client: Any, key: Callable[[str], bytes]) -> None:
    client.delete(key(":li"))


def _lose_record(client: Any, key: Callable[[str], bytes]) -> None:
    client.xdel("t:{running:0}:jn", "3-0")


def _keep_trimmed_record(client: Any, key: Callable[[str], bytes]) -> None:
    client.hset("t:{running:0}:meta", "journal_anchor", (2).to_bytes(8) + bytes(56))
    client.zadd("t:{running:0}:meta:i", {"journal_anchor": 0})


@pytest.mark.parametrize(
    ("damage", "kind", "text"),
    [
        (_lose_place, "index", "is missing from the delivery order"),
        (_tear_message, "damaged", "The message cannot be read"),
        (_lose_lease, "lease", "no deadline row"),
        (_lose_record, "journal", "Records 3 to 3 are missing"),
        (_keep_trimmed_record, "journal", "still exists"),
    ],
)
async def test_damage_is_named_while_the_server_runs(
    shard: Shard,
    opener: OnRedis,
    redis_server: RedisServer,
    tmp_path: Path,
    damage: Callable[[Any, Callable[[str], bytes]], None],
    kind: str,
    text: str,
) -> None:
    """Rows changed behind the server's back are found as in a stopped store."""
    client = redis_server.client()

    def key(end: str) -> bytes:
        found: bytes = next(client.scan_iter(f"t:{{running:0}}:{T}:{Q}:*{end}"))
        return found

    damage(client, key)
    report = _examine(opener, tmp_path / "elsewhere")
    assert any(one.kind == kind and text in one.text for one in report.findings), report.findings
    if kind == "journal":
        assert _verify(opener, tmp_path / "elsewhere")


@pytest.mark.usefixtures("shard")
async def test_oversized_queue_is_named_and_skipped(
    opener: OnRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor reports it instead of guessing, and checks the other queues."""
    monkeypatch.setattr(running_shard, "QUEUE_BYTES_MAX", 1_000)
    report = _examine(opener, tmp_path / "elsewhere")
    assert report.clean
    named = {one.partition(": ")[0] for one in report.unchecked}
    assert f"{T}/{Q}" in named
    assert f"{T}/{BRIEF}" not in named


async def test_unreachable_redis_is_not_a_finding(tmp_path: Path) -> None:
    """The doctor raises an error, because nothing was examined."""

    class Nowhere:
        url = f"redis://127.0.0.1:{free_port()}"

    opener = OnRedis(Nowhere, tmp_path, patience_ms=100)
    with pytest.raises(Unavailable) as caught:
        _examine(opener, tmp_path)
    assert not isinstance(caught.value, StoreFailed)
