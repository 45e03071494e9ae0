"""A shard with missing data is never mistaken for an empty one, nor a partial server for a complete one."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import httpx
import pytest

from tenantq.backup.restore import restore_server
from tenantq.cli.exit_codes import UNAVAILABLE, exit_code
from tenantq.cluster.supervision import supervisor
from tenantq.errors import StoreDamaged, StoreFailed
from tenantq.runtime.backoff import Backoff
from tenantq.store.shard_directories import (
    check_there,
    numbered_dirs,
    remember_count,
    shard_count,
    shard_dir,
    shard_dirs,
)
from tests.acceptance.command import ADMIN_TOKEN, call
from tests.contract.shards.sharded import supervised

if TYPE_CHECKING:
    from pathlib import Path


async def _run_and_back_up(data: Path) -> None:
    server = supervised(data)
    try:
        url = await server.start(asyncio.Event())
        async with httpx.AsyncClient(base_url=url or "", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}) as client:
            refused = await client.post("/v1/backups", json={"name": "shards"})
            assert (refused.status_code, "Choose another" in refused.json()["detail"]) == (422, True)
            assert (await client.post("/v1/backups", json={"name": "night"})).status_code == 201
        assert await server.stop()
    finally:
        server.kill()


async def test_shard_with_a_missing_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Server start, examinations and running servers notice it, also with an empty mount point."""
    data = tmp_path / "data"
    await _run_and_back_up(data)
    seen: list[bool] = []
    restored = restore_server(
        tmp_path / "data-backups" / "night", tmp_path / "again", progress=lambda *_: seen.append((tmp_path / "again").exists())
    )  # fmt: skip
    assert (restored.manifest.name, set(seen)) == ("night", {False})  # it appears atomically
    assert (shard_count(tmp_path / "again"), len(shard_dirs(tmp_path / "again"))) == (2, 2)
    assert not list((tmp_path / "again").glob(".*"))
    for place in (data, tmp_path / "again"):
        shard_dir(place, 1).rename(tmp_path / f"{place.name}-lost")
        for is_mount_point in (False, True):
            if is_mount_point:
                shard_dir(place, 1).mkdir()
            for command in (("serve", "--http", "127.0.0.1:0"), ("doctor",), ("audit", "verify")):
                refused = call(*command, "--data-dir", place)
                assert (refused.code, "shard 1 is missing in" in refused.err) == (6, True), refused
        assert not list(shard_dir(place, 1).iterdir())
    shard_dir(data, 1).rmdir()
    (tmp_path / "data-lost").rename(shard_dir(data, 1))
    monkeypatch.setattr(supervisor, "RESTART_BACKOFF", Backoff(1, 5_000))
    server = supervised(data)
    try:
        await server.start(asyncio.Event())
        pid = int((shard_dir(data, 1) / "lock").read_text())
        shard_dir(data, 1).rename(tmp_path / "data-lost")
        os.kill(pid, signal.SIGKILL)
        assert "shard 1 keeps dying" in await server.run(asyncio.Event())
        await server.stop()
    finally:
        server.kill()
    assert not shard_dir(data, 1).exists()


def test_created_shards_are_remembered(tmp_path: Path) -> None:
    """A shard that was never created may be missing; reducing the count forgets the rest."""
    for number in (0, 2):
        shard_dir(tmp_path, number).mkdir(parents=True, exist_ok=True)
        (shard_dir(tmp_path, number) / "format").touch()
    remember_count(tmp_path, 3)
    assert [number for number, _ in numbered_dirs(tmp_path)] == [0, 2]
    (shard_dir(tmp_path, 2) / "format").unlink()
    remember_count(tmp_path, 4)
    check_there(tmp_path, 1)
    with pytest.raises(StoreDamaged, match=r"shard 2 .* remove 2 from 'made'"):
        check_there(tmp_path)
    remember_count(tmp_path, 2)
    check_there(tmp_path)


async def test_server_does_not_start_without_its_tenant_directory(tmp_path: Path) -> None:
    """Its shards would find no tenant. No process is started."""
    data = tmp_path / "data"
    (data / "directory.lock").mkdir(parents=True)
    server = supervised(data)
    with pytest.raises(StoreFailed, match=r"directory\.lock: Is a directory; check the path") as refused:
        await server.start(asyncio.Event())
    assert exit_code(refused.value) == UNAVAILABLE
    assert await server.stop()
