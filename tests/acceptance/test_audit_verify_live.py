"""The live journal of a stopped server is verified: tampering with a row is found at the first affected record."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rocksdict import WriteBatch

from tenantq.cli.command_line import run
from tenantq.domain.message import NewMessage
from tenantq.journal.checkpoint import CHECKPOINT_ROW, AuditSettings, unpack
from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.record import Record, decode_record, encode_record
from tenantq.journal.signing import SigningKey
from tenantq.server import Server
from tenantq.settings import ServerSettings
from tenantq.store.keys import after, be64
from tenantq.store.rocks import RocksStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Deed = Callable[["Rows"], object]


def work(directory: Path, *, exported: bool, rounds: int = 20, keep: int = 1_000) -> None:
    """Run a server, do some work with a checkpoint in the middle, and stop it cleanly."""

    async def serve() -> None:
        export = ExportSettings(enabled=exported, keep_records=keep)
        settings = ServerSettings(data_dir=str(directory), http="127.0.0.1:0", export=export, audit=AuditSettings())
        async with Server(settings, admin_token="a" * 20) as server:
            for part in range(2):
                for _ in range(rounds):
                    await server.shard.add("default", "mail", [NewMessage(body=b"x")])
                if part == 0:
                    await server.shard.journal.sign(server.runtime._audit_key)

    asyncio.run(serve())


class Rows:
    """The journal's rows, to be tampered with."""

    def __init__(self, directory: Path) -> None:
        self.store = RocksStore(directory)
        self.batch = WriteBatch(raw_mode=True)
        jn, meta = self.store.jn, self.store.meta
        self.records = {int.from_bytes(key): value for key, value in self.store.scan_items(jn, b"", b"\xff" * 9, 9_999)}
        found = self.store.scan_items(meta, CHECKPOINT_ROW, after(CHECKPOINT_ROW), 99)
        self.checkpoints = {int.from_bytes(key[len(CHECKPOINT_ROW) :]): value for key, value in found}

    def put(self, seq: int, value: bytes) -> None:
        """Write a record."""
        self.batch.put(be64(seq), value, self.store.jn.handle)
        self.records[seq] = value

    def delete(self, *seqs: int) -> None:
        """Delete records."""
        for seq in seqs:
            self.batch.delete(be64(seq), self.store.jn.handle)

    def drop_checkpoint(self, seq: int) -> None:
        """Delete a checkpoint."""
        self.batch.delete(CHECKPOINT_ROW + be64(seq), self.store.meta.handle)

    def forge(self, seq: int, previous: bytes | None = None) -> bytes:
        """Change a record and give it a matching hash; return it."""
        record = decode_record(self.records[seq])[1]
        record.entries[0].principal = "somebody else"
        forged = Record(record.shard, seq, record.ts, record.engine_ms, record.last_id, record.entries)
        link, value = encode_record(self.records[seq - 1][:32] if previous is None else previous, forged)
        self.put(seq, value)
        return link

    def forge_from(self, seq: int, end: int) -> None:
        """Change a record and recompute the chain from there to ``end``."""
        link = self.forge(seq)
        for one in range(seq + 1, end + 1):
            link, value = encode_record(link, decode_record(self.records[one])[1])
            self.put(one, value)

    def close(self) -> None:
        """Apply the changes."""
        self.store.write(self.batch)
        self.store.close()


def edit(rows: Rows) -> None:
    """Flip one bit."""
    value = bytearray(rows.records[9])
    value[60] ^= 1
    rows.put(9, bytes(value))


def swap(rows: Rows) -> None:
    """Exchange two records."""
    first, second = rows.records[9], rows.records[10]
    rows.put(9, second)
    rows.put(10, first)


def insert(rows: Rows) -> None:
    """Insert a record and renumber the following ones."""
    for seq in range(len(rows.records), 8, -1):
        rows.put(seq + 1, rows.records[seq])
    rows.forge(9)


def truncate(rows: Rows) -> None:
    """Delete everything from a record on."""
    rows.delete(*range(30, len(rows.records) + 1))


def truncate_with_the_last_checkpoint(rows: Rows) -> None:
    """Delete the last record and its checkpoint."""
    last = max(rows.checkpoints)
    rows.delete(last)
    rows.drop_checkpoint(last)


def forge_checkpoint(rows: Rows) -> None:
    """Change the signed content of a checkpoint."""
    first = min(rows.checkpoints)
    rows.batch.put(
        CHECKPOINT_ROW + be64(first), rows.checkpoints[first].replace(b'"ts":', b'"ts":1'), rows.store.meta.handle
    )


def replace_checkpoint(rows: Rows) -> None:
    """Replace a checkpoint with another valid one."""
    first, last = min(rows.checkpoints), max(rows.checkpoints)
    rows.batch.put(CHECKPOINT_ROW + be64(first), rows.checkpoints[last], rows.store.meta.handle)


# the change, the first record that cannot be trusted, the text of the finding
DEEDS: list[tuple[str, Deed, Callable[[Rows], int], str]] = [
    ("edit", edit, lambda _: 9, "was changed"),
    ("edit with a new hash", lambda rows: rows.forge(9), lambda _: 10, "was changed, or does not follow"),
    ("edit with a new chain", lambda rows: rows.forge_from(9, max(rows.records)), lambda _: 1, "rewritten"),
    ("edit after a checkpoint with a new chain",
     lambda rows: rows.forge_from(min(rows.checkpoints) + 2, max(rows.records)),
     lambda rows: min(rows.checkpoints) + 1, "rewritten"),
    ("deletion", lambda rows: rows.delete(9), lambda _: 9, "Records 9 to 9 are missing"),
    ("deletion of the first", lambda rows: rows.delete(1, 2), lambda _: 1, "Records 1 to 2 are missing"),
    ("insertion", insert, lambda _: 10, "was changed, or does not follow"),
    ("insertion of a stray row", lambda rows: rows.batch.put(be64(9) + b"x", b"y" * 50, rows.store.jn.handle),
     lambda _: 10, "invalid row was inserted after record 9"),
    ("reordering", swap, lambda _: 9, "was changed"),
    ("truncation", truncate, lambda _: 30, "are missing at the end"),
    ("truncation with its checkpoint", truncate_with_the_last_checkpoint, lambda rows: max(rows.records), "the sync marker"),
    ("a checkpoint taken away", lambda rows: rows.drop_checkpoint(min(rows.checkpoints)),
     lambda rows: min(rows.checkpoints), "was removed"),
    ("a checkpoint forged", forge_checkpoint, lambda rows: min(rows.checkpoints), "not signed by the server"),
    ("a checkpoint replaced", replace_checkpoint, lambda rows: min(rows.checkpoints), "belongs to record"),
]  # fmt: skip


def verify(directory: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    """Run the command and return its exit code and output."""
    code = run(["audit", "verify", "--data-dir", str(directory), "--json", *options])
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, said


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory that nobody tampered with, without an archive."""
    directory = tmp_path_factory.mktemp("live") / "data"
    work(directory, exported=False)
    return directory


@pytest.fixture
def stopped(untouched: Path, tmp_path: Path) -> Path:
    """Return a copy of it."""
    return shutil.copytree(untouched, tmp_path / "data")


def test_untouched_store_is_clean_and_fully_signed(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A clean stop signs the last record."""
    code, said = verify(stopped, capsys)
    assert (code, said["findings"]) == (0, [])
    assert said["checkpoints"] == 2
    rows = Rows(stopped)
    assert max(rows.checkpoints) == max(rows.records) == said["live_records"]
    assert unpack(rows.checkpoints[max(rows.records)]).link == rows.records[max(rows.records)][:32].hex()
    rows.close()


@pytest.mark.parametrize(("deed", "first", "text"), [deed[1:] for deed in DEEDS], ids=[deed[0] for deed in DEEDS])
def test_tampering_with_the_live_journal_is_found(
    deed: Deed, first: Callable[[Rows], int], text: str, stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The finding names the first record that was changed or became doubtful."""
    rows = Rows(stopped)
    expected = first(rows)
    deed(rows)
    rows.close()
    code, said = verify(stopped, capsys)
    assert code == 1
    assert said["findings"][0]["seq"] == expected, said["findings"]
    assert text in said["findings"][0]["text"]
    assert said["findings"][0]["where"] == "store"


def test_forged_journal_without_key_files_is_not_clean(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The chain and its checkpoints are forged with another key, and the real keys are deleted."""
    rows, key = Rows(stopped), SigningKey(Ed25519PrivateKey.generate())
    rows.forge_from(9, max(rows.records))
    for seq, stored in rows.checkpoints.items():
        forged = msgspec.structs.replace(unpack(stored), link=rows.records[seq][:32].hex()).signed(key)
        rows.batch.put(CHECKPOINT_ROW + be64(seq), msgspec.json.encode(forged), rows.store.meta.handle)
    rows.close()
    code, said = verify(stopped, capsys)
    assert (code, said["clean"]) == (1, False)
    for file in stopped.glob("audit_key*"):
        file.unlink()
    code, said = verify(stopped, capsys)
    assert (code, said["clean"], said["findings"]) == (6, False, [])


def test_forged_chain_is_found_by_its_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The archive has the hash of every record, and the journal continues from it."""
    work(tmp_path / "data", exported=True)
    assert verify(tmp_path / "data", capsys)[0] == 0
    rows = Rows(tmp_path / "data")
    rows.forge_from(9, max(rows.records))
    rows.close()
    code, said = verify(tmp_path / "data", capsys)
    assert code == 1
    assert said["findings"][0]["seq"] == 9
    assert {"store"} == {finding["where"] for finding in said["findings"]}
    assert any(one["seq"] == 9 and "differs from the exported one" in one["text"] for one in said["findings"])


def test_live_journal_must_continue_from_the_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Checkpoints are trimmed with their records, and both halves must fit together."""
    directory = tmp_path / "data"
    work(directory, exported=True, keep=4)
    code, said = verify(directory, capsys)
    assert (code, said["findings"]) == (0, [])
    assert said["live_first_seq"] > 20
    assert said["checkpoints"] == 1
    rows = Rows(directory)
    anchor = bytearray(rows.store.get(rows.store.meta, b"journal_anchor") or b"")
    anchor[10] ^= 1
    rows.batch.put(b"journal_anchor", bytes(anchor), rows.store.meta.handle)
    rows.close()
    code, said = verify(directory, capsys)
    assert code == 1
    assert "does not continue from record" in said["findings"][0]["text"]
    assert said["findings"][0]["seq"] == said["live_first_seq"] - 1
