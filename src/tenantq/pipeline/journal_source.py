"""The journal that a run reads: which manifests the lake has not accepted yet, in a local directory.

Segments behind a URL are downloaded into the lake, processed from there, and removed. They are read more than once, by the
verification and by Spark, so a copy costs one download, and Spark needs no library for the object store.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Final

import msgspec

from tenantq.errors import Invalid, Unavailable
from tenantq.journal.export_target import DirectoryTarget, ExportTarget, open_target
from tenantq.journal.manifest import MANIFESTS, manifest_names, read_manifest
from tenantq.journal.segment_retention import INGESTED, Ingested
from tenantq.journal.target_url import local_path, shown_url
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.run_options import RunOptions

_DOWNLOADS: Final = 8  # at a time
FETCH: Final = "fetch segments"
"""The stage in which segments behind a URL are downloaded."""


class JournalFiles(msgspec.Struct):
    """The files of a journal that a run processes. Names are relative to ``root``."""

    root: str
    manifests: list[str]  # not accepted before
    orphans: list[str]  # segments that no manifest names
    segments: list[str] = []  # those that the manifests name

    def count_rows(self) -> int:
        """Return the rows of the segments, as their manifests say. Unreadable manifests count as none."""
        count = 0
        for name in self.manifests:
            with contextlib.suppress(Invalid, OSError):
                count += read_manifest(DirectoryTarget(Path(self.root)), name).rows
        return count


def open_journal(journal: str) -> ExportTarget:
    """Return the journal at a path or URL. Raise Invalid for a path that cannot be read, or a URL that is not supported."""
    local = local_path(journal)
    return open_target(journal) if local is None else DirectoryTarget(_checked(journal, local.absolute()))


def _checked(journal: str, path: Path) -> Path:
    try:
        if not path.is_dir():
            raise Invalid(
                f"journal {journal}: is not a directory. Give the directory that contains date=… and manifest/."
            )
        names = [one.name for one in path.iterdir()]
        if MANIFESTS in names:  # unreadable segments are quarantined, but manifests that cannot be listed stay unknown
            for shard in (path / MANIFESTS).iterdir():
                next(shard.iterdir() if shard.is_dir() else iter(()), None)
    except OSError as error:
        what = f"{error.filename or journal}: cannot be read: {error.strerror}"
        raise Invalid(f"journal {what}; check its permissions") from error
    if names and MANIFESTS not in names and not any(name.startswith("date=") for name in names):
        raise Invalid(
            f"journal {journal}: contains neither date=… nor {MANIFESTS}/. Give the journal directory inside the data directory."
        )
    return path


@contextmanager
def local_journal(
    journal: str, lake: Lake, options: RunOptions, progress: Callable[[str], None], only: Container[str] | None = None
) -> Iterator[JournalFiles]:
    """Yield the new files of a journal, or those of ``only`` some manifests, downloaded first if it is remote.

    The lake must be locked. Raise Invalid for a journal that does not exist or is empty, Unavailable if a remote one cannot
    be read.
    """
    target = open_journal(journal)
    if isinstance(target, DirectoryTarget):
        yield new_files(target, str(target.path), lake, options, only)
        note_ingested(target, lake)
        return
    progress(FETCH)
    place = lake.incoming()
    try:
        with reading(journal):
            if not target.names(""):
                raise Invalid(f"journal {shown_url(journal)}: is empty. Give the target of the export.")
            files = new_files(target, str(place), lake, options, only)
            _download(target, [*files.manifests, *files.orphans, *files.segments], place)
        yield files
        note_ingested(target, lake)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def reading(journal: str) -> Iterator[None]:
    """Raise Unavailable if a remote journal cannot be read."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"journal {shown_url(journal)}: cannot be read: {str(error)[:300]}") from error


def note_ingested(target: ExportTarget, lake: Lake) -> None:
    """Note at the target what the lake has accepted, so that the server's retention keeps the rest. Works only with write access."""
    done = {row["manifest"]: row["last_seq"] for row in lake.rows("segments") if not row["reason"]}
    where = hashlib.sha256(lake.name.encode()).hexdigest()[:16]
    by_shard: dict[str, list[str]] = {}
    for name in manifest_names(target):
        by_shard.setdefault(name.split("/")[1], []).append(name)
    for shard, names in by_shard.items():
        accepted = list(takewhile(done.__contains__, names))
        note = Ingested(lake.name, done[accepted[-1]] if accepted else 0)
        with contextlib.suppress(OSError):
            target.write(f"{INGESTED}/{shard}/{where}.json", msgspec.json.encode(note))


def new_files(
    target: ExportTarget, root: str, lake: Lake, options: RunOptions, only: Container[str] | None = None
) -> JournalFiles:
    """Return what is new in a journal, in the days that the options ask for, of ``only`` some manifests if given.

    A segment's day is that of its first record.
    """
    done = {row["manifest"] for row in lake.rows("segments") if not row["reason"]}
    files = {_span(name): name for name in target.names("") if name.endswith(".parquet")}
    manifests = manifest_names(target)
    described = {_span(name) for name in manifests}

    def asked_for(file: str) -> bool:
        return not file.startswith("date=") or options.asks_for(file.removeprefix("date=")[:10])

    new = [name for name in manifests if name not in done and (only is None or name in only)]
    wanted = [name for name in new if asked_for(files.get(_span(name), ""))]
    orphans = [file for span, file in sorted(files.items()) if span not in described and asked_for(file)]
    return JournalFiles(root, wanted, orphans, [files[_span(name)] for name in wanted if _span(name) in files])


def _span(name: str) -> tuple[str, str]:
    """Return the shard and the record numbers that the name of a segment or manifest has."""
    *_, shard, file = name.split("/") if name.count("/") else ("", "", name)
    return shard, file.rpartition(".")[0]


def _download(target: ExportTarget, names: list[str], place: Path) -> None:
    """Copy files. The verification reports those that do not exist any more."""

    def copy(name: str) -> None:
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            file.write_bytes(target.read(name))
        except FileNotFoundError:
            file.unlink(missing_ok=True)

    with ThreadPoolExecutor(_DOWNLOADS) as pool:
        for _ in pool.map(copy, names):
            pass
