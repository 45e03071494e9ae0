"""The audit trail is verified from the command line, offline, and what was done to it is named."""

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
    """Return the data directory of a server that did some work and was stopped in good order."""
    directory = tmp_path / "data"

    async def work() -> None:
        async with Server(ServerSettings(data_dir=str(directory), http="127.0.0.1:0"), admin_token="a" * 20) as server:
            for _ in range(3):
                await server.shard.add("default", "mail", [NewMessage(body=b"x")])

    asyncio.run(work())
    return directory


def test_a_clean_stop_exports_the_journal_to_its_end(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And everything verifies, live journal and archive alike."""
    assert run(["audit", "verify", "--data-dir", str(stopped), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["clean"]
    assert said["last_seq"] == {"0": said["live_records"]}
    assert run(["doctor", "--data-dir", str(stopped)]) == 0


def test_a_copied_archive_is_verified_alone(stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the public key, on any machine. Without it, nothing proves who wrote it: another exit code says so."""
    shutil.copytree(stopped / "journal", tmp_path / "copy")
    key = str(stopped / "audit_key.pub")
    assert run(["audit", "verify", "--segments", str(tmp_path / "copy"), "--public-key", key]) == 0
    assert "no tampering found" in capsys.readouterr().out
    assert run(["audit", "verify", "--segments", str(tmp_path / "copy")]) == 6
    said = capsys.readouterr()
    assert "cannot be verified: no public key" in said.err
    assert "no tampering found" not in said.out


def test_a_signed_file_with_a_field_that_no_signature_covers_is_refused(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither in a segment's manifest nor in the head."""
    for file in (stopped / "journal" / "manifest").rglob("*.json"):
        whole = file.read_bytes()
        file.write_text(json.dumps({**json.loads(whole), "checked_by": "an auditor"}))
        assert run(["audit", "verify", "--data-dir", str(stopped)]) == 1
        assert "unknown field `checked_by`" in capsys.readouterr().out
        file.write_bytes(whole)
    assert run(["audit", "verify", "--data-dir", str(stopped)]) == 0


@pytest.mark.parametrize("left", [0.0, 0.5, 1.0])
def test_a_damaged_heart_file_is_refused(stopped: Path, left: float, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty, halved or zeroed: a cut journal would go unnoticed. The server, the doctor and the verification refuse it."""
    heart = stopped / "heart"
    heart.write_bytes(bytes(256) if left == 1 else heart.read_bytes()[: int(256 * left)])
    assert run(["audit", "verify", "--data-dir", str(stopped)]) == 1
    assert "heart is damaged" in capsys.readouterr().out
    assert run(["doctor", "--data-dir", str(stopped)]) == 1
    with pytest.raises(StoreDamaged, match="heart"):
        work_more(stopped)


def test_what_was_done_to_a_segment_is_named(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line a finding, and an exit code that scripts can trust."""
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
def test_wrong_usage_is_one_line(
    arguments: list[str],
    code: int,
    text: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the code of its kind."""
    monkeypatch.chdir(tmp_path)
    assert run(["audit", "verify", *arguments]) == code
    said = capsys.readouterr().err
    assert text in said
    assert len(said.splitlines()) == 1


def work_more(directory: Path) -> None:
    """Have the server of a data directory do more, and stop in good order."""

    async def work() -> None:
        async with Server(ServerSettings(data_dir=str(directory), http="127.0.0.1:0"), admin_token="a" * 20) as server:
            await server.shard.add("default", "mail", [NewMessage(body=b"y")])

    asyncio.run(work())


def test_an_archive_that_was_taken_away_is_not_clean(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty place has nothing wrong in it, and that is what is wrong."""
    (tmp_path / "empty").mkdir()
    assert run(["audit", "verify", "--segments", str(tmp_path / "empty")]) == 1
    assert "No segments found" in capsys.readouterr().out
    shutil.rmtree(stopped / "journal")
    assert run(["audit", "verify", "--data-dir", str(stopped)]) == 0  # all of it is in the store still
    assert "no tampering found" in capsys.readouterr().out


def test_everything_put_back_to_an_earlier_state_is_found_by_who_remembers(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Journal, checkpoints, heart and segments are whole in themselves; only what was noted elsewhere tells."""
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
        assert "is known but missing" in capsys.readouterr().out
    seq, _, link = end.partition(":")
    assert run(["audit", "verify", "--data-dir", str(stopped), "--known", f"{seq}:{link[::-1]}"]) == 1
    assert "differs from the known hash" in capsys.readouterr().out
    assert run(["audit", "verify", "--data-dir", str(stopped), "--known", "7"]) == 2


def test_who_signs_everything_anew_is_found_by_the_key_that_was_kept(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The directory's own key is replaced with the rest; that it is the directory's own is said."""
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
