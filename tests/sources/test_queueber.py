"""``tenantq migrate-from queueber``: every item of a store once, with its ID, time and position."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from rocksdict import Options, Rdict

from tenantq import Client
from tests.acceptance.command import ADMIN_TOKEN
from tests.sources.queueber_store import QueueberStore, stored_item, uuid7

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.command import Served

NOW_S = int(time.time())  # at collection, possibly long before the tests run
NOW_MS = NOW_S * 1_000
DAY_S = 86_400


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    """Connect as the administrator."""
    with Client(server.url, ADMIN_TOKEN) as found:
        yield found


def make_tenant(client: Client, name: str) -> None:
    """Create a tenant for one test."""
    client.tenant(name).configure()


def store(directory: Path, *, one_family: bool = False) -> list[bytes]:
    """Write a store of five ready, one delayed and two leased items; return their ids."""
    ids = [uuid7(NOW_MS - 10_000 + number, number) for number in range(8)]
    written = QueueberStore(directory, one_family=one_family)
    for number in range(5):
        written.add(ids[number], b"item %d" % number, NOW_S - 100 + number)
    written.add(ids[5], b"later \xff\x00", NOW_S + DAY_S)
    written.lease(uuid7(NOW_MS, 99), {ids[6]: b"held 6", ids[7]: b"held 7"}, NOW_S + DAY_S)
    written.close()
    return ids


@pytest.mark.parametrize("one_family", [False, True], ids=["six families", "before the families"])
def test_a_store_is_migrated_with_ids_order_and_delays(
    server: Served, client: Client, tmp_path: Path, *, one_family: bool
) -> None:
    """Items in progress become ready, and delayed items stay delayed."""
    tenant = f"queueber-{one_family}".lower()
    make_tenant(client, tenant)
    ids = store(tmp_path / "old", one_family=one_family)
    done = server.ok(
        "migrate-from", "queueber", tmp_path / "old", "--tenant", tenant, "--queue", "default", "--json"
    ).json
    assert (done["read"], done["added"], done["verified"], done["skipped"]) == (8, 8, True, {})
    queue = client.tenant(tenant).queue("default")
    got = queue.poll(max=10)
    assert [message.body for message in got] == [*(b"item %d" % n for n in range(5)), b"held 6", b"held 7"]
    assert [bytes.fromhex(message.id.replace("-", "")) for message in got] == [*ids[:5], *ids[6:]]
    assert queue.stats().delayed == 1


def test_second_run_adds_nothing(server: Served, client: Client, tmp_path: Path) -> None:
    """This holds even after everything was consumed."""
    make_tenant(client, "queueber-again")
    store(tmp_path / "old")
    command = ("migrate-from", "queueber", tmp_path / "old", "--tenant", "queueber-again", "--queue", "jobs", "--json")
    assert server.ok(*command).json["added"] == 8
    queue = client.tenant("queueber-again").queue("jobs")
    for message in queue.poll(max=10):
        message.ack()
    again = server.ok(*command).json
    assert (again["read"], again["added"]) == (8, 0)
    assert queue.poll(max=10) == []


def test_items_in_progress_can_keep_their_lease(server: Served, client: Client, tmp_path: Path) -> None:
    """They become visible when the old lease ends."""
    make_tenant(client, "queueber-leases")
    store(tmp_path / "old")
    server.ok(
        "migrate-from", "queueber", tmp_path / "old", "--tenant", "queueber-leases", "--queue", "jobs",
        "--in-progress", "keep-lease",
    )  # fmt: skip
    found = client.tenant("queueber-leases").queue("jobs").stats()
    assert (found.ready, found.delayed) == (5, 3)


def test_damage_is_counted_reported_and_skipped(server: Served, client: Client, tmp_path: Path) -> None:
    """Index rows without an item and undecodable items are reported with exit code 7; everything else is migrated."""
    make_tenant(client, "queueber-damage")
    written = QueueberStore(tmp_path / "old")
    good, lost, broken, bare = (uuid7(NOW_MS, number) for number in range(4))
    written.add(good, b"good", NOW_S)
    written.put("visibility_index", NOW_S.to_bytes(8) + b"/" + lost, b"available/" + lost)
    written.put("available", broken, b"\x07nonsense")
    written.put("visibility_index", NOW_S.to_bytes(8) + b"/" + broken, b"available/" + broken)
    written.put("available", bare, stored_item(b"bare", b"", bare))
    written.put("available", b"short", b"")
    written.close()
    done = server.call(
        "migrate-from", "queueber", tmp_path / "old", "--tenant", "queueber-damage", "--queue", "jobs", "--json"
    )
    assert done.code == 7
    assert done.json["skipped"] == {
        "index rows without an item; skipped": 1,
        "items without an index row; migrated as ready": 1,
        "items that cannot be decoded; skipped": 1,
        "malformed keys; skipped": 1,
    }
    bodies = {message.body for message in client.tenant("queueber-damage").queue("jobs").poll(max=10)}
    assert bodies == {b"good", b"bare"}


def test_a_dry_run_changes_nothing(server: Served, client: Client, tmp_path: Path) -> None:
    """It shows how many messages go where."""
    make_tenant(client, "queueber-dry")
    store(tmp_path / "old")
    done = server.ok(
        "migrate-from", "queueber", tmp_path / "old", "--tenant", "queueber-dry", "--dry-run", "--json"
    ).json
    (queue,) = done["queues"]
    assert (queue["ready"], queue["delayed"], queue["in_progress"], queue["to"]) == (5, 1, 2, "queueber-dry/default")
    assert client.tenant("queueber-dry").queues() == []


@pytest.mark.parametrize("make", [True, False], ids=["empty", "missing"])
def test_a_directory_without_a_store_is_refused(server: Served, tmp_path: Path, *, make: bool) -> None:
    """The exit code is 2, with a one-line error."""
    if make:
        (tmp_path / "old").mkdir()
    done = server.call("migrate-from", "queueber", tmp_path / "old")
    assert done.code == 2
    assert "not a RocksDB directory" in done.err
    assert len(done.err.splitlines()) == 1


def test_store_of_another_program_is_refused(server: Served, tmp_path: Path) -> None:
    """The error names its column families."""
    Rdict(str(tmp_path / "old"), Options(raw_mode=True)).close()
    done = server.call("migrate-from", "queueber", tmp_path / "old")
    assert (done.code, "contains no Queueber items" in done.err) == (2, True)
