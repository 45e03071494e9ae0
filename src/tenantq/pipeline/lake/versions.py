"""Version sets: which versions of all tables belong together, and the lake's state at that point.

They are rows of the Delta table ``_versions``. Replacing its rows is one atomic commit, also on object stores, and it is
what commits a run: tenantq reads every table at the version that the newest set names.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from tenantq.errors import Conflict, Invalid, Unavailable
from tenantq.journal.target_url import shown_url
from tenantq.pipeline.lake.state import LakeState
from tenantq.runtime.durable_files import sync, sync_all

VERSIONS: Final = "_versions"
LOG: Final = "_delta_log"
AT_ONCE: Final = CommitProperties(max_commit_retries=0)
"""A commit on top of another process's commit fails, because it was computed from older rows."""
KEEP_LOG: Final = PostCommitHookProperties(cleanup_expired_logs=False)
"""By default, a commit deletes log entries after 30 days, also those that pinned versions need."""
KEEP_FILES: Final = {
    "delta.deletedFileRetentionDuration": "interval 36500 days",
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.enableExpiredLogCleanup": "false",
}
"""Table properties that keep VACUUM and log cleanup of other tools from deleting what version sets and legal holds need."""
_SHORT_LOG: Final = {"delta.checkpointInterval": "10"}
"""Every command reads the version sets, from a bucket with a request for each entry since the last checkpoint."""
_ENTRY: Final = re.compile(rf"(?:^|/){LOG}/(\d{{20}})\.[^/]*$")
_COLUMNS: Final = pa.schema(
    [
        ("number", pa.int64()),
        ("at_ms", pa.int64()),
        ("pin", pa.string()),
        ("claim", pa.string()),
        ("kept", pa.bool_()),
        ("tables", pa.string()),
        ("state", pa.string()),
    ]
)


def storage_options() -> dict[str, str]:
    """Return what deltalake does not read from the environment: an endpoint with http:// has to be allowed."""
    return {"AWS_ALLOW_HTTP": "true"} if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://") else {}


def delta_table(uri: str, version: int | None = None) -> DeltaTable:
    """Open a table; raise TableNotFoundError."""
    return DeltaTable(uri, version=version, storage_options=storage_options())


class VersionSet(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of all tables that one commit left."""

    number: int
    at_ms: int
    tables: dict[str, int]
    state: LakeState = LakeState()
    pin: str = ""  # why its files must be kept; empty: they are deleted when newer sets replace it
    kept: bool = False  # a run asked to keep it, so only runs and erasures drop it
    claim: str = ""  # at a URL, of the newest set: until when (ms) a process may change the lake, and a token of it


def read_sets(uri: str) -> list[VersionSet]:
    """Return the recorded sets, oldest first; raise Invalid if they cannot be read."""
    try:
        rows = delta_table(uri).to_pyarrow_table().to_pylist()
        sets = [
            VersionSet(
                number=row["number"], at_ms=row["at_ms"], pin=row["pin"], claim=row["claim"],
                kept=bool(row.get("kept")),  # a lake may have been written before this column was added
                tables=msgspec.json.decode(row["tables"], type=dict[str, int]),
                state=msgspec.json.decode(row["state"], type=LakeState),
            )
            for row in rows
        ]  # fmt: skip
    except TableNotFoundError:
        return []
    except (DeltaError, OSError, msgspec.DecodeError) as error:
        why = " ".join(re.sub(r"\x1b\[\d*m|↳", " ", str(error)).split())[:300]
        if "://" in uri:
            raise Unavailable(f"{shown_url(uri)}: cannot be read: {why}") from error
        raise Invalid(f"{uri}: cannot be read ({why}). Restore it from a backup of the lake.") from error
    return sorted(sets, key=lambda one: one.number)


def write_sets(uri: str, sets: list[VersionSet], read: VersionSet) -> None:
    """Replace the recorded sets; raise Conflict if the newest one is not the one that was ``read``."""
    rows: list[dict[str, Any]] = [
        {
            "number": one.number, "at_ms": one.at_ms, "pin": one.pin, "claim": one.claim, "kept": one.kept,
            "tables": msgspec.json.encode(one.tables, order="sorted").decode(),
            "state": msgspec.json.encode(one.state, order="sorted").decode(),
        }
        for one in sets
    ]  # fmt: skip
    recorded: DeltaTable | None = None
    newest = (0, "")
    with contextlib.suppress(TableNotFoundError):
        recorded = delta_table(uri)
        found = recorded.to_pyarrow_table(columns=["number", "claim"]).to_pylist()
        newest = max((row["number"], row["claim"]) for row in found)
    what = f"{uri}: another run changed the lake. Run the command again."
    if newest != (read.number, read.claim):
        raise Conflict(what)
    try:
        given = pa.Table.from_pylist(rows, _COLUMNS)
        if recorded is None:
            write_deltalake(uri, given, mode="error", configuration=_SHORT_LOG, commit_properties=AT_ONCE, post_commithook_properties=KEEP_LOG, storage_options=storage_options())  # fmt: skip
        else:
            write_deltalake(recorded, given, mode="overwrite", schema_mode="overwrite", commit_properties=AT_ONCE, post_commithook_properties=KEEP_LOG)  # fmt: skip
    except DeltaError as error:  # another commit was first, or created the table
        raise Conflict(what) from error


def unneeded_entries(names: Iterable[str], kept: set[int]) -> Iterator[str]:
    """Yield the files of a table's log that none of the ``kept`` versions needs.

    A version needs the newest checkpoint up to it, and the entries from there on. Entries after the newest one stay.
    """
    entries = {name: int(found[1]) for name in names if (found := _ENTRY.search(name))}
    checkpoints = sorted(version for name, version in entries.items() if ".checkpoint." in name)
    ranges = [(max((one for one in checkpoints if one <= last), default=0), last) for last in kept]
    newest = max(kept)
    for name, version in entries.items():
        if version <= newest and not any(first <= version <= last for first, last in ranges):
            yield name


def sync_log(table: Path, version: int | None = None) -> None:
    """Make a commit to a local table survive a power cut: deltalake does not sync what it writes."""
    entry = table / LOG / f"{version:020d}.json" if version is not None else max((table / LOG).glob("*.json"))
    sync_all([entry, *table.glob("*.parquet")])
    sync(table / LOG)
    sync(table)


def drop_torn_entry(table: Path) -> None:
    """Remove the newest entry of a local table's log if a power cut left it incomplete. Its commit was not recorded."""
    newest = max((table / LOG).glob("*.json"), default=None)
    if newest is None:
        return
    try:
        for line in newest.read_bytes().splitlines() or [b""]:
            msgspec.json.decode(line)
    except msgspec.DecodeError:
        newest.unlink()
        sync(newest.parent)
