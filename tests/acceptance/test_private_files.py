"""Files written by a server and its commands are private: other users of the machine cannot read them."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command import serving

if TYPE_CHECKING:
    from pathlib import Path


def readable_by(who: int, root: Path) -> list[str]:
    """Return all files that ``who`` (mode bits) may read and can reach through their directories."""
    found = []
    for directory, names, files in os.walk(root):
        if directory != str(root) and not os.stat(directory).st_mode & who:  # noqa: PTH116  # as os.walk has them
            names.clear()
            continue
        found += [
            os.path.join(directory, name)  # noqa: PTH118  # as os.walk has them
            for name in files
            if os.lstat(os.path.join(directory, name)).st_mode & who  # noqa: PTH118
        ]
    return found


def test_other_users_cannot_read_what_a_server_writes(tmp_path: Path) -> None:
    """This covers store, log, exported journal and backup; a plaintext export is private to its creator."""
    tmp_path.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    home.chmod(0o755)
    before = os.umask(0o022)
    try:
        with serving(home / "data") as server:
            server.ok("tenant", "create", "acme")
            server.ok("add", "work", "in plain", "--tenant", "acme")
            server.ok("backup", "create", "b1")
            server.ok("export", "acme", "--out", home / "acme.tar")
            server.ok("export", "acme", "--out", f"{home / 'unpacked'}/")
            server.process.terminate()
            assert server.process.wait(30) == 0
    finally:
        os.umask(before)
    assert (home / "data" / "journal").is_dir()
    assert readable_by(stat.S_IRGRP | stat.S_IROTH, home) == []
    assert stat.S_IMODE((home / "acme.tar").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "data").stat().st_mode) == 0o700


@pytest.mark.parametrize(("mode", "group_reads"), [(0o750, True), (0o755, True), (0o700, False)])
def test_group_access_to_the_data_directory_extends_to_segments(
    tmp_path: Path, mode: int, *, group_reads: bool
) -> None:
    """A pipeline that runs as another user needs it. Others never get access."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    with serving(data) as server:
        server.ok("add", "work", "in plain")
        server.process.terminate()
        assert server.process.wait(30) == 0
    (segment,) = (data / "journal").rglob("*.parquet")
    assert bool(segment.stat().st_mode & stat.S_IRGRP) is group_reads
    assert readable_by(stat.S_IROTH, data) == []


def test_export_replaces_a_partial_file_and_follows_no_link(tmp_path: Path) -> None:
    """A symlink in place of the partial file would redirect the plaintext."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    with serving(tmp_path / "data") as server:
        server.ok("add", "work", "in plain")
        (tmp_path / ".default.tar.partial").symlink_to(elsewhere)
        server.ok("export", "default", "--out", tmp_path / "default.tar")
    assert elsewhere.read_text() == "mine"
