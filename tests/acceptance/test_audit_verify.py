"""The audit trail is verified offline from the command line, and tampering is named."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tenantq.cli.command_line import run
from tenantq.domain.message import NewMessage
from tenantq.errors import StoreDamaged
from tenantq.server import Server
from tenantq.settings import ServerSettings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Return the data directory of a server that did some work and was stopped cleanly."""
    directory = tmp_path / "data"

    async def work() -> None:
        async with Server(ServerSettings(data_dir=str(directory), http="127.0.0.1:0"), admin_token="a" * 20) as server:
            for _ in range(3):
                await server.shard.add("default", "mail", [NewMessage(body=b"x")])

    asyncio.run(work())
    return directory


def test_clean_stop_exports_the_whole_journal(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The live journal and the archive both verify."""
    assert run(["audit", "verify", "--data-dir", str(stopped), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["clean"]
    assert said["last_seq"] == {"0": said["live_records"]}
    assert run(["doctor", "--data-dir", str(stopped)]) == 0


def test_copied_archive_is_verified_alone(stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The public key suffices, on any machine. Without it, another exit code says that the author is unproven."""
    shutil.copytree(stopped / "journal", tmp_path / "copy")
    key = str(stopped / "audit_key.pub")
    assert run(["audit", "verify", "--segments", str(tmp_path / "copy"), "--public-key", key]) == 0
    assert "no tampering found" in capsys.readouterr().out
    assert run(["audit", "verify", "--segments", str(tmp_path / "copy")]) == 6
    said = capsys.readouterr()
    assert "cannot be verified: no public key" in said.err
    assert "no tampering found" not in said.out


def test_signed_file_with_an_unsigned_field_is_refused(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This holds for segment manifests and for the head."""
    for file in (stopped / "journal" / "manifest").rglob("*.json"):
        whole = file.read_bytes()
        file.write_text(json.dumps({**json.loads(whole), "checked_by": "an auditor"}))
        assert run(["audit", "verify", "--data-dir", str(stopped)]) == 1
        assert "unknown field `checked_by`" in capsys.readouterr().out
        file.write_bytes(whole)
    assert run(["audit", "verify", "--data-dir", str(stopped)]) == 0


@pytest.mark.parametrize("left", [0.0, 0.5, 1.0])
def test_damaged_heart_file_is_refused(stopped: Path, left: float, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty, halved or zeroed, it could hide a truncated journal. Server, doctor and verification refuse it."""
    marker = stopped / "heart"
    marker.write_bytes(bytes(256) if left == 1 else marker.read_bytes()[: int(256 * left)])
    assert run(["audit", "verify", "--data-dir", str(stopped)]) == 1
    assert "heart is damaged" in capsys.readouterr().out
    assert run(["doctor", "--data-dir", str(stopped)]) == 1
    with pytest.raises(StoreDamaged, match="heart"):
        work_more(stopped)


def test_tampered_segment_is_named(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output names the file, and the exit code is 1."""
    (segment,) = (stopped / "journal").rglob("*.parquet")
    raw = bytearray(segment.read_bytes())
    raw[len(raw) // 2] ^= 1
    segment.write_bytes(raw)
    assert run(["audit", "verify", "--data-dir", str(stopped)]) == 1
    assert segment.name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "Give --data-dir"),
        (["--segments", "nowhere"], 2, "no such directory: nowhere"),
        (["--data-dir", "nowhere"], 6, "nowhere"),
    ],
)
def test_wrong_usage_is_a_one_line_error(
    arguments: list[str],
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The exit code depends on the kind of error."""
    monkeypatch.chdir(tmp_path)
    assert run(["audit", "verify", *arguments]) == code
    said = capsys.readouterr().err
    assert text in said
    assert len(said.splitlines()) == 1


def work_more(directory: Path) -> None:
    """Restart the server of a data directory, do more work, and stop it cleanly."""

    async def work() -> None:
        async with Server(ServerSettings(data_dir=str(directory), http="127.0.0.1:0"), admin_token="a" * 20) as server:
            await server.shard.add("default", "mail", [NewMessage(body=b"y")])

    asyncio.run(work())


def test_missing_archive_is_reported(stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty directory is not a clean archive. If the store still has every record, nothing is missing."""
    (tmp_path / "empty").mkdir()
    assert run(["audit", "verify", "--segments", str(tmp_path / "empty")]) == 1
    assert "No segments found" in capsys.readouterr().out
    shutil.rmtree(stopped / "journal")
    assert run(["audit", "verify", "--data-dir", str(stopped)]) == 0  # the store still has all records
    assert "no tampering found" in capsys.readouterr().out


def test_rollback_is_found_with_a_known_end(stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An older copy is consistent in itself. Only a record number and hash noted elsewhere reveal the rollback."""
    shutil.copytree(stopped, tmp_path / "earlier")
    work_more(stopped)
    assert run(["audit", "verify", "--data-dir", str(stopped), "--json"]) == 0
    end, key = json.loads(capsys.readouterr().out)["end"], ["--public-key", str(stopped / "audit_key.pub")]
    for place in (["--data-dir", str(stopped)], ["--segments", str(stopped / "journal")]):
        assert run(["audit", "verify", *place, *key, "--known", end]) == 0
        assert f"end: {end}" in capsys.readouterr().out
    for place in (["--data-dir", str(tmp_path / "earlier")], ["--segments", str(tmp_path / "earlier" / "journal")]):
        assert run(["audit", "verify", *place, *key]) == 0
        capsys.readouterr()
        assert run(["audit", "verify", *place, *key, "--known", end]) == 1
        assert "has a known hash but is missing" in capsys.readouterr().out
    seq, _, link = end.partition(":")
    assert run(["audit", "verify", "--data-dir", str(stopped), "--known", f"{seq}:{link[::-1]}"]) == 1
    assert "differs from the known hash" in capsys.readouterr().out
    assert run(["audit", "verify", "--data-dir", str(stopped), "--known", "7"]) == 2


def test_resigned_journal_is_found_with_the_kept_public_key(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The directory's own key was replaced with the rest, so the output recommends keeping a copy elsewhere."""
    kept = tmp_path / "kept.pub"
    shutil.copy(stopped / "audit_key.pub", kept)
    for name in ("audit_key", "audit_key.pub"):
        (stopped / name).unlink()
    shutil.rmtree(stopped / "journal")
    shutil.rmtree(stopped / "db")
    for name in ("heart", "format"):
        (stopped / name).unlink()
    work_more(stopped)
    assert run(["audit", "verify", "--data-dir", str(stopped)]) == 0
    assert "keep a copy elsewhere for --public-key" in capsys.readouterr().out
    assert run(["audit", "verify", "--data-dir", str(stopped), "--public-key", str(kept)]) == 1
    assert "is not signed by the server" in capsys.readouterr().out
    both = ["--public-key", str(kept), "--public-key", str(stopped / "audit_key.pub")]
    assert run(["audit", "verify", "--data-dir", str(stopped), *both]) == 0
    assert "keep a copy elsewhere" not in capsys.readouterr().out
