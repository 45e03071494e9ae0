"""A tenant is exported and imported from the command line, over HTTP."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.command import Served


@pytest.fixture(scope="module")
def exported(server: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an export of a tenant with 2,500 messages."""
    server.ok("tenant", "create", "acme", "--weight", "3")
    server.ok("queue", "create", "still", "--tenant", "acme")
    server.ok("queue", "pause", "still", "--tenant", "acme")
    server.ok("add", "mail", "--lines", "--tenant", "acme", stdin=b"\n".join(b"line %d" % n for n in range(2_500)))
    server.ok("grant", "put", "jwt:worker", "--role", "consumer", "--tenant", "acme")
    file = tmp_path_factory.mktemp("export") / "acme.tar"
    said = server.ok("export", "acme", "--out", file, "--json").json
    assert said["counts"]["messages"] == 2_500
    assert said["size"] == file.stat().st_size
    return file


def test_export_is_imported_once_under_another_name(server: Served, exported: Path) -> None:
    """A second import adds nothing; queues, pauses and grants are imported too."""
    first = server.ok("import", exported, "--as", "copy", "--json").json
    assert (first["queues"], first["messages"], first["grants"], first["there"]) == (2, 2_500, 1, 0)
    second = server.ok("import", exported, "--as", "copy")
    assert "0 messages" in second.out
    assert "parts were already imported" in second.out
    queues = {one["name"]: one for one in server.ok("queue", "list", "--tenant", "copy", "--json").json["queues"]}
    assert (queues["mail"]["ready"], queues["still"]["status"]) == (2_500, "paused")
    assert server.ok("poll", "mail", "--tenant", "copy", "--body").out == "line 0\n"
    assert server.ok("tenant", "show", "copy", "--json").json["config"]["weight"] == 3


def test_export_shows_progress_on_a_terminal(server: Served, exported: Path, tmp_path: Path) -> None:
    """A bar counts bytes while the export arrives and is verified; a pipe gets none."""
    code, shown = server.run_on_terminal("export", "acme", "--out", tmp_path / "again.tar")
    assert code == 0
    assert exported.stat().st_size > 1_000_000
    for text in ("━", "MB", "0:00:0", "verifying", "exported acme to"):
        assert text in shown, text


def test_export_to_a_directory(server: Served, exported: Path, tmp_path: Path) -> None:
    """It has the same files and is imported like a tar."""
    place = tmp_path / "here"
    server.ok("export", "acme", "--out", f"{place}/")
    with tarfile.open(exported) as tar:
        names = {name for name in tar.getnames() if not name.startswith("audit")}
    there = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert names == {name for name in there if not name.startswith("audit")}
    assert server.ok("import", place, "--as", "third", "--json").json["messages"] == 2_500


def test_changed_export_is_refused_before_anything_is_sent(server: Served, exported: Path, tmp_path: Path) -> None:
    """Covers a flipped bit, an extra file, a truncated tar and a missing manifest."""
    raw = bytearray(exported.read_bytes())
    raw[raw.index(b"line 7")] ^= 1
    (tmp_path / "bit.tar").write_bytes(raw)
    (tmp_path / "cut.tar").write_bytes(exported.read_bytes()[:200_000])
    (tmp_path / "none.tar").write_bytes(b"nothing of the kind")
    (tmp_path / "empty").mkdir()
    with tarfile.open(exported) as tar:
        tar.extractall(tmp_path / "more", filter="data")
    (tmp_path / "more" / "more.jsonl").touch()
    for name, text in (
        ("bit.tar", "does not match its hash"),
        ("cut.tar", "truncated"),
        ("none.tar", "not a tar file"),
        ("empty", "manifest.json is missing"),
        ("more", "more.jsonl is not in the manifest"),
    ):
        refused = server.call("import", tmp_path / name, "--as", "never")
        assert refused.code == 2, refused
        assert text in refused.err
    assert server.call("tenant", "show", "never").code == 3


def test_existing_files_and_missing_rights_are_refused(server: Served, exported: Path, tmp_path: Path) -> None:
    """Nothing is overwritten, and no partial file is left."""
    assert server.call("export", "acme", "--out", exported).code == 7
    assert server.call("export", "acme", "--out", tmp_path / "no" / "where.tar").code == 2
    assert server.call("export", "nobody", "--out", tmp_path / "x.tar").code == 3
    token = json.loads(server.ok("key", "create", "v", "--role", "viewer", "--tenant", "acme", "--json").out)["token"]
    denied = server.call("export", "acme", "--out", tmp_path / "x.tar", TENANTQ_TOKEN=token)
    assert denied.code == 4
    assert list(tmp_path.iterdir()) == []


def test_legal_hold_moves_with_its_tenant(server: Served, tmp_path: Path) -> None:
    """Otherwise moving a tenant would allow deleting the copy."""
    server.ok("tenant", "create", "held")
    server.ok("add", "mail", "evidence", "--tenant", "held")
    server.ok("tenant", "hold", "held", "--reason", "Case 4711, counsel's letter")
    server.ok("export", "held", "--out", tmp_path / "held.tar")
    server.ok("import", tmp_path / "held.tar", "--as", "held-2")
    assert server.ok("tenant", "show", "held-2", "--json").json["hold"]["reason"] == "Case 4711, counsel's letter"
    refused = server.call("tenant", "delete", "held-2", "--yes", "--reason", "nobody needs it any more")
    assert refused.code != 0
    assert "legal hold" in refused.err
