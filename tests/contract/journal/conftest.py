"""Fixtures: a shard whose journal is exported to a directory, and its verification."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.export_target import DirectoryTarget
from tenantq.journal.exporter import Exporter
from tenantq.journal.signing import SigningKey
from tenantq.journal.verify import AuditReport, verify_segments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tenantq.journal.segment_index import SegmentIndex
    from tenantq.runtime.clock import ManualClock
    from tests.verbs import Shard

    MakeExporter = Callable[..., Exporter]


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    """Return the signing key."""
    return SigningKey.load_or_make(tmp_path)


@pytest.fixture
def target(tmp_path: Path) -> DirectoryTarget:
    """Return the target of exports."""
    return DirectoryTarget(tmp_path / "journal")


@pytest.fixture
def make_exporter(target: DirectoryTarget, key: SigningKey, clock: ManualClock) -> MakeExporter:
    """Create an exporter of a shard."""

    def make(shard: Shard, index: SegmentIndex | None = None, **settings: object) -> Exporter:
        return Exporter(shard.journal, target, key, clock, ExportSettings(**settings), index)  # type: ignore[arg-type]

    return make


@pytest.fixture
def verify(target: DirectoryTarget, key: SigningKey) -> Callable[[], AuditReport]:
    """Verify the archive at the target."""
    return lambda: verify_segments(target, key.public)
