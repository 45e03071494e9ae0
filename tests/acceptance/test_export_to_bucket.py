"""A server killed between uploading a segment and its manifest: after a restart each record is in the bucket once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.journal.export_target import open_target
from tenantq.journal.manifest import manifest_names, read_manifest
from tenantq.journal.signing import PUBLIC_FILE, PublicKey
from tenantq.journal.verify import verify_segments
from tests.acceptance.command import SECONDS_MAX, serving
from tests.buckets import served_bucket

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tenantq.journal.export_target import ExportTarget


def _segments(target: ExportTarget) -> list[str]:
    return [name for name in target.names("") if name.endswith(".parquet")]


def test_kill_between_segment_and_manifest_exports_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leftovers are removed, and the archive verifies and holds every message."""
    url = "s3://evidence/journal"
    config = tmp_path / "tenantq.toml"
    config.write_text(f'[export]\ntarget = "{url}"\nevery_ms = 100\nsegment_rows = 4\n')
    with served_bucket(monkeypatch) as bucket:
        target = open_target(url)
        with serving(tmp_path / "data", "--config", config) as served:
            served.ok("add", "mail", "--lines", stdin=b"one\ntwo\nthree\n")
            bucket.victim = served.process
            served.call("add", "mail", "while it is killed")
            assert served.process.wait(SECONDS_MAX) == -9
        bucket.victim = None
        assert len(_segments(target)) == len(manifest_names(target)) + 1
        with serving(tmp_path / "data", "--config", config) as again:
            again.ok("add", "mail", "after it")
            ready = again.ok("queue", "show", "mail", "--json").json["ready"]
            again.process.terminate()
            assert again.process.wait(SECONDS_MAX) == 0
        report = verify_segments(target, PublicKey.load(tmp_path / "data" / PUBLIC_FILE))
        manifests = [read_manifest(target, name) for name in manifest_names(target)]
        assert report.clean, report.findings
        assert sorted(one.file for one in manifests) == _segments(target)
        ends = [one.last_seq for one in manifests]
        assert [one.first_seq for one in manifests] == [1, *(end + 1 for end in ends[:-1])]
        assert ready == 5
