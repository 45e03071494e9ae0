"""A local copy of a journal's new manifests, which Spark watches if the journal or the lake is at a URL.

Spark cannot list an object store without its library, and a lake at a URL has no place for Spark's checkpoint. The lake itself
records what was processed, so the copy and the checkpoint last only as long as the stream.
"""

import tempfile
import time
from pathlib import Path

from tenantq.journal.export_target import ExportTarget
from tenantq.journal.manifest import MANIFESTS, manifest_names
from tenantq.pipeline.journal_source import reading
from tenantq.pipeline.lake.lake import Lake


class ManifestMirror:
    """Copies the manifests that the lake has not accepted, each once."""

    def __init__(self, source: ExportTarget, journal: str, lake: Lake, every_s: float | None) -> None:
        self._source, self._journal, self._every_s = source, journal, every_s
        self._place = tempfile.TemporaryDirectory(prefix="tenantq-stream-")
        self.root = Path(self._place.name)
        self.manifests = self.root / MANIFESTS
        self.manifests.mkdir()
        self._copied = {row["manifest"] for row in lake.rows("segments") if not row["reason"]}
        self._due_s = 0.0

    def refresh(self) -> None:
        """Copy new manifests, at most once per interval; without an interval, once. Raise Unavailable as ``reading`` does."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + self._every_s if self._every_s is not None else float("inf")
        with reading(self._journal):
            for name in manifest_names(self._source):
                if name not in self._copied:
                    self._copy(name, self._source.read(name))
                    self._copied.add(name)

    def _copy(self, name: str, data: bytes) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}")  # Spark ignores it
        draft.write_bytes(data)
        draft.rename(file)

    def close(self) -> None:
        """Remove the copy."""
        self._place.cleanup()
