"""The directory of embedded shards in one file that several processes share."""

from __future__ import annotations

import fcntl
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from tenantq.cluster.tenant_directory import TenantPlacements
from tenantq.domain.cluster_view import Cluster, TenantPlacement
from tenantq.domain.placement import unit_name
from tenantq.errors import Conflict, StoreDamaged, StoreFailed
from tenantq.store import placement_file
from tenantq.store.placement_file import FILE, LOCK, PlacementFile, remove_placements

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[PlacementFile, PlacementFile]]:
    """Return the directory as two processes have it open."""
    pair = PlacementFile(tmp_path, create=True), PlacementFile(tmp_path)
    yield pair
    for one in pair:
        one.close()


def test_of_writers_at_the_same_time_one_wins(both: tuple[PlacementFile, PlacementFile]) -> None:
    """All get the row that was stored, and every change has a version of its own."""
    with ThreadPoolExecutor(8) as pool:
        placed = [
            pool.submit(both[number % 2].place_tenant, f"tenant-{number // 4}", TenantPlacement(shard=number))
            for number in range(40)
        ]
        rows = [one.result() for one in placed]
    version, stored = both[0].placements()
    assert (version, len(stored)) == (11, 10)
    assert [stored[f"tenant-{number // 4}"] for number in range(40)] == rows
    assert sorted(row.version for row in stored.values()) == list(range(2, 12))


def test_processes_open_commit_and_close_one_at_a_time(
    both: tuple[PlacementFile, PlacementFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old versions of SQLite could lose a commit. Reads wait for nobody."""
    first, second = both
    row = first.place_tenant("acme", TenantPlacement(shard=1))
    assert (tmp_path / LOCK).stat().st_mode & 0o077 == 0
    monkeypatch.setattr(placement_file, "BUSY_S", 0.0)
    with (tmp_path / LOCK).open() as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        for call in (lambda: second.remove_tenant("acme"), lambda: PlacementFile(tmp_path), second.close):
            with pytest.raises(StoreFailed, match=r"directory\.lock is locked by another process"):
                call()
        assert second.placements()[1] == {"acme": row}
    second.remove_tenant("acme")
    assert first.placements()[1] == {}


def test_only_a_starting_server_makes_the_file(tmp_path: Path) -> None:
    """A shard that starts without one would find no tenant. A server without tenants makes it once."""
    with pytest.raises(StoreFailed, match=r"is missing\. Restart the server"):
        PlacementFile(tmp_path)
    assert list(tmp_path.iterdir()) == []
    stored = PlacementFile(tmp_path, create=True)
    assert stored.is_new()
    stored.fill({})
    assert not stored.is_new()
    stored.fill({"acme": TenantPlacement(shard=1)})
    assert stored.placement_changes(1) is None
    assert list(stored.placements()[1]) == ["acme"]
    stored.close()


def test_row_is_replaced_only_from_the_version_that_was_read(both: tuple[PlacementFile, PlacementFile]) -> None:
    """A row that is gone is not replaced."""
    first, second = both
    row = first.place_tenant("acme", TenantPlacement(shard=1, regions=("eu",)))
    moved = second.move_tenant("acme", TenantPlacement(shard=2), row.version)
    assert (moved is not None and moved.shard, first.placements()[1]) == (2, {"acme": moved})
    assert first.move_tenant("acme", TenantPlacement(shard=3), row.version) is None
    first.remove_tenant("acme")
    assert second.move_tenant("acme", TenantPlacement(shard=3), row.version) is None
    assert second.placements()[1] == {}


def test_processes_follow_changes(both: tuple[PlacementFile, PlacementFile], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that missed too many reads everything."""
    first, second = both
    assert first.is_new()
    first.place_tenant("gone", TenantPlacement(shard=1))
    since, _ = second.placements()
    assert second.placement_changes(since) == (since, {})
    kept = first.place_tenant("kept", TenantPlacement(shard=1))
    first.remove_tenant("gone")
    first.remove_tenant("unknown")
    assert second.placement_changes(since) == (since + 2, {"kept": kept, "gone": None})
    monkeypatch.setattr(placement_file, "CHANGES_KEPT", 1)
    first.place_tenant("last", TenantPlacement(shard=1))
    assert second.placement_changes(since) is None
    assert not first.is_new()


def test_nothing_begins_to_move_during_a_backup(both: tuple[PlacementFile, PlacementFile]) -> None:
    """And a backup does not begin while something moves."""
    first, second = both
    row = first.place_tenant("acme", TenantPlacement(shard=1))
    first.hold_moves(0)
    with pytest.raises(Conflict, match="another backup"):
        second.hold_moves(0)
    for change in (TenantPlacement(shard=1, moving_to=2), TenantPlacement(shard=1, next_shards=(1, 2))):
        with pytest.raises(Conflict, match="a backup is being created"):
            second.move_tenant("acme", change, row.version)
    first.release_moves(0)
    moving = second.move_tenant("acme", TenantPlacement(shard=1, moving_to=2), row.version)
    assert moving is not None
    with pytest.raises(Conflict, match="tenants are moving"):
        first.hold_moves(0)
    second.move_tenant("acme", TenantPlacement(shard=2), moving.version)
    first.hold_moves(0)


def test_a_refused_backup_names_the_tenants_that_move(both: tuple[PlacementFile, PlacementFile]) -> None:
    """Up to three, once each, whether they move as a whole or in parts."""
    stored, _ = both
    waiting = {f"t{number}": TenantPlacement(shard=0, moving_to=1) for number in range(2)}
    stored.fill({"still": TenantPlacement(shard=0), unit_name("t0", "q"): TenantPlacement(shard=1), **waiting})
    with pytest.raises(Conflict, match=r"shards: t0, t1\. Wait .* 'tenantq topology unpin' gives it up before"):
        stored.hold_moves(0)
    stored.fill({f"s{number}": TenantPlacement(shard=0, next_shards=(0, 1)) for number in range(3)})
    with pytest.raises(Conflict, match=r"shards: s0, s1, s2 and 2 more\. Wait"):
        stored.hold_moves(0)


def test_a_failed_reading_counts_for_nobody(both: tuple[PlacementFile, PlacementFile]) -> None:
    """Whoever waited for it reads again instead of taking the rows for up to date."""
    placements = TenantPlacements(both[0], Cluster(id="", format="1", shards=2))
    since = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(both[0], "placements", _fail)
        with pytest.raises(StoreFailed):
            placements.read(time.monotonic())
    both[1].place_tenant("acme", TenantPlacement(shard=1))
    placements.read(since)
    assert placements.find("acme") == 1
    both[1].place_tenant("later", TenantPlacement(shard=1))
    placements.read(since)  # the last reading began after that
    assert placements.find("later") is None


def _fail() -> NoReturn:
    raise StoreFailed("busy")


def test_damage_and_closed_files_are_errors_of_the_store(tmp_path: Path) -> None:
    """Only the owner can read the file. It disappears with the last but one shard."""
    stored = PlacementFile(tmp_path, create=True)
    stored.place_tenant("acme", TenantPlacement(shard=1))
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    stored.close()
    for call in (stored.placements, lambda: stored.remove_tenant("acme")):
        with pytest.raises(StoreFailed):
            call()
    (tmp_path / FILE).write_bytes(b"not a database" * 100)
    with pytest.raises(StoreDamaged, match="delete the file"):
        PlacementFile(tmp_path)
    remove_placements(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_deletion_that_is_cut_short_leaves_no_old_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its log, the file would lack the last commits. A log without its file is not read."""
    stored = PlacementFile(tmp_path, create=True)
    stored.place_tenant("acme", TenantPlacement(shard=1))
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in (FILE, f"{FILE}-wal", f"{FILE}-shm"):
        shutil.copy(tmp_path / name, killed)
    stored.close()
    unlink = Path.unlink

    def be_killed(path: Path, *, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        raise KeyboardInterrupt

    with monkeypatch.context() as cut:
        cut.setattr(Path, "unlink", be_killed)
        with pytest.raises(KeyboardInterrupt):
            remove_placements(killed)
    assert {path.name for path in killed.iterdir()} == {f"{FILE}-wal", f"{FILE}-shm"}
    again = PlacementFile(killed, create=True)
    assert again.is_new()
    again.close()
    synced: list[list[Path]] = []
    monkeypatch.setattr(placement_file, "sync", lambda home: synced.append(list(home.iterdir())))
    remove_placements(killed)
    remove_placements(killed)
    assert synced == [[]]
