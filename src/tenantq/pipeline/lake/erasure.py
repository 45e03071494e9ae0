"""Erasure of a tenant from every layer and the archive, with a certificate that says what was removed and what is left: nothing.

The tombstone is written in the same commit that takes the rows out of the lake. Archived days follow one by one, then
everything is read again, then the certificate is written. Killed anywhere, erasing again goes on where it was.
"""

from __future__ import annotations

import hashlib
import io
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as f

from tenantq.errors import Conflict, Invalid, NotFound, StoreDamaged
from tenantq.pipeline.gold.invoice_lines import SUMS, month_sums
from tenantq.pipeline.lake.archive_storage import day_place, fetch, open_storage, store, sweep, tenants_in
from tenantq.pipeline.lake.state import ArchivedDay, Erasure, Removal
from tenantq.pipeline.silver.tenant_changes import held_tenants
from tenantq.pipeline.tables import TABLES
from tenantq.runtime.durable_files import write_durably

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tenantq.journal.signing import SigningKey
    from tenantq.pipeline.lake.lake import Lake

CERTIFICATES: Final = "erasures"
_OF_TENANTS: Final = tuple(table for table in TABLES.values() if "tenant" in table.columns.names)


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased, where, and that nothing was found when everything was read again."""

    tenant: str
    reason: str
    erased_at: str
    rows_until: str  # rows of the tenant up to here never come back
    rows_removed: int
    removals: list[Removal]
    rows_left: dict[str, int]  # by table, and archive/table, as read afterwards
    previous_sha256: str  # of the certificate before; empty: this is the first
    sha256: str = ""  # of this text with neither hash nor signature
    key_id: str = ""
    signature: str = ""

    def hashed_text(self) -> bytes:
        """Return the bytes that the hash and the signature are over."""
        return msgspec.json.encode(msgspec.structs.replace(self, sha256="", key_id="", signature=""), order="sorted")


def erase(
    spark: SparkSession, lake: Lake, tenant: str, reason: str, now_ms: int,
    key: SigningKey | None = None, progress: Callable[[str], None] = lambda _: None,
) -> tuple[Certificate, Path]:  # fmt: skip
    """Take a tenant out of the lake and its archive; return the certificate and its file.

    Raise NotFound where the tenant has no rows, Conflict while a legal hold is on it.
    """
    if not tenant or not reason.strip():
        raise Invalid("erase: needs a tenant and a reason; both stand in the certificate")
    with lake.locked():
        progress("legal holds")
        if tenant in held_tenants(lake.read(spark, "tenant_changes").where(f.col("tenant") == tenant)):
            raise Conflict(f"tenant {tenant!r}: is under a legal hold; lift it before erasing", tenant=tenant)
        entry = _unfinished(lake, tenant)
        if entry is None:
            entry = _erase_tables(spark, lake, Erasure(tenant, now_ms, reason.strip()), progress)
        entry = _erase_archive(lake, entry, progress)
        progress("reading again")
        return _certify(spark, lake, entry, key, now_ms)


def _unfinished(lake: Lake, tenant: str) -> Erasure | None:
    """Return the erasure that somebody began and did not finish."""
    return next((one for one in lake.state().erased if one.tenant == tenant and not one.certificate), None)


def _erase_tables(spark: SparkSession, lake: Lake, entry: Erasure, progress: Callable[[str], None]) -> Erasure:
    """Commit the tables without the tenant, and its tombstone."""
    tenant = entry.tenant
    removals: list[Removal] = []
    months = {
        row["period"]: {name: str(row[name]) for name in SUMS}
        for row in month_sums(lake.read(spark, "usage_hourly").where(f.col("tenant") == tenant)).collect()
    }
    for table in _OF_TENANTS:
        if not lake.has(table.name):
            continue
        progress(table.name)
        rows = lake.read(spark, table.name)
        keys = [f.col(name) for name in table.partitions]
        touched = f.count_if(_concerns(table.name, tenant))
        counted = rows.groupBy(*keys).agg(
            f.count("*").alias("_rows"), f.count_if(f.col("tenant") == tenant).alias("_of_tenant"), touched.alias("_touched")
        ).where("_touched > 0").collect()  # fmt: skip
        names = set()
        for row in counted:
            name = "/".join(f"{column}={row[column]}" for column in table.partitions)
            names.add(name or ".")
            place = f"{table.name}/{name}".rstrip("/")
            removals.append(Removal(place, row["_rows"], row["_of_tenant"], digest_of(lake.path / place), ""))
        if names:
            kept = lake.view(spark, table.name, names.__contains__).where(f.col("tenant") != tenant)
            lake.stage(_without_mention(kept, table.name, tenant), table.name, names.__contains__)
    archived = (day for day in lake.state().archived if day.files)
    if not removals and not any(tenant in tenants_in(open_storage(day.url), day) for day in archived):
        raise NotFound(f"tenant {tenant!r}: the lake has no row of it", tenant=tenant)
    removals = [_after(one, digest_of(lake.staged_path(one.partition))) for one in removals]
    entry = msgspec.structs.replace(entry, removals=sorted(removals, key=lambda one: one.partition), months=months)
    _remember(lake, entry)
    lake.commit()
    return entry


def _after(removal: Removal, digest: str) -> Removal:
    return msgspec.structs.replace(removal, sha256_after=digest)


def _erase_archive(lake: Lake, entry: Erasure, progress: Callable[[str], None]) -> Erasure:
    """Write archived days anew without the tenant, each in one step."""
    for day in lake.state().archived:
        if not day.files:
            continue
        target = open_storage(day.url)
        tables = [pq.read_table(io.BytesIO(fetch(target, file))) for file in day.files]
        removed = sum(pc.sum(pc.equal(rows["tenant"], entry.tenant)).as_py() or 0 for rows in tables)
        kept = [_archived_without(rows, day.table, entry.tenant) for rows in tables]
        if all(one.equals(other) for one, other in zip(kept, tables, strict=True)):
            sweep(target, day)  # a step that was killed may have left the old file
            continue
        progress(f"archive {day.table} {day.date}")
        mark = f".{hashlib.sha256(f'{entry.tenant} {entry.until_ms}'.encode()).hexdigest()[:8]}"
        files = store(target, day_place(day.table, day.date), [rows for rows in kept if rows.num_rows], mark)
        after = msgspec.structs.replace(day, files=files)
        removal = Removal(
            day_place(day.table, day.date), sum(file.rows for file in day.files), removed, _files_digest(day),
            _files_digest(after), day.url,
        )  # fmt: skip
        entry = msgspec.structs.replace(entry, removals=[*entry.removals, removal])
        _remember(lake, entry, after)
        lake.commit()
        sweep(target, after)
    return entry


def _certify(
    spark: SparkSession, lake: Lake, entry: Erasure, key: SigningKey | None, now_ms: int
) -> tuple[Certificate, Path]:
    left = _rows_left(spark, lake, entry.tenant)
    if any(left.values()):
        raise StoreDamaged(f"tenant {entry.tenant!r}: rows are left: {left}; erase again", tenant=entry.tenant)
    earlier = [one for one in lake.state().erased if one.certificate]
    previous = _read(lake.path / earlier[-1].certificate).sha256 if earlier else ""
    certificate = Certificate(
        tenant=entry.tenant, reason=entry.reason, erased_at=_moment(now_ms), rows_until=_moment(entry.until_ms),
        rows_removed=sum(one.rows_removed for one in entry.removals), removals=entry.removals, rows_left=left,
        previous_sha256=previous,
    )  # fmt: skip
    text = certificate.hashed_text()
    certificate = msgspec.structs.replace(
        certificate, sha256=hashlib.sha256(text).hexdigest(),
        key_id=key.public.id if key else "", signature=key.sign(text) if key else "",
    )  # fmt: skip
    name = f"{CERTIFICATES}/{len(earlier) + 1:06d}.json"
    (lake.path / CERTIFICATES).mkdir(exist_ok=True)
    write_durably(lake.path / name, msgspec.json.format(msgspec.json.encode(certificate)) + b"\n")
    # The tombstone forgets what the certificate tells, and keeps what the next run needs.
    _remember(lake, msgspec.structs.replace(entry, removals=[], certificate=name))
    lake.commit()
    return certificate, lake.path / name


def check_certificates(lake: Lake) -> list[Certificate]:
    """Return all certificates, in order; raise StoreDamaged where one was changed or the chain has a hole."""
    found: list[Certificate] = []
    for entry in lake.state().erased:
        if not entry.certificate:
            continue
        one = _read(lake.path / entry.certificate)
        previous = found[-1].sha256 if found else ""
        if one.sha256 != hashlib.sha256(one.hashed_text()).hexdigest() or one.previous_sha256 != previous:
            raise StoreDamaged(f"certificate {entry.certificate}: was changed, or the one before it")
        found.append(one)
    return found


def _read(file: Path) -> Certificate:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Certificate)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreDamaged(f"certificate {file}: cannot be read: {error}") from error


def _rows_left(spark: SparkSession, lake: Lake, tenant: str) -> dict[str, int]:
    """Read everything again, lake and archive, and count what concerns the tenant."""
    left = {
        table.name: lake.read(spark, table.name).where(_concerns(table.name, tenant)).count()
        for table in _OF_TENANTS
        if lake.has(table.name)
    }
    for day in lake.state().archived:
        if day.files:
            target = open_storage(day.url)
            for file in day.files:
                rows = pq.read_table(io.BytesIO(fetch(target, file)))
                lost = rows.num_rows - _archived_without(rows, day.table, tenant).num_rows
                left[f"archive/{day.table}"] = left.get(f"archive/{day.table}", 0) + lost
    return left


def _concerns(table: str, tenant: str) -> Any:
    """Tell rows of the tenant, and those of others that name it."""
    mine = f.col("tenant") == tenant
    if table == "anomalies":
        mine |= (f.col("kind") == "cross_tenant_probing") & f.col("details").rlike(_mention(tenant))
    return mine


def _without_mention(rows: DataFrame, table: str, tenant: str) -> DataFrame:
    """Take the name out of the list of tenants that somebody probed."""
    if table != "anomalies":
        return rows
    probing = f.col("kind") == "cross_tenant_probing"
    told = f.regexp_replace("details", _mention(tenant), "an erased tenant")
    return rows.withColumn("details", f.when(probing, told).otherwise(f.col("details")))


def _archived_without(rows: pa.Table, table: str, tenant: str) -> pa.Table:
    kept = rows.filter(pc.not_equal(rows["tenant"], tenant))
    if table == "anomalies" and kept.num_rows:
        told = [
            re.sub(_mention(tenant), "an erased tenant", text) if kind == "cross_tenant_probing" else text
            for kind, text in zip(kept["kind"].to_pylist(), kept["details"].to_pylist(), strict=True)
        ]
        place = kept.schema.get_field_index("details")
        kept = kept.set_column(place, kept.schema.field(place), [told])
    return kept


def _mention(tenant: str) -> str:
    """Return a pattern, the same for Java and Python, of a name that stands alone in a list."""
    return rf"(?<![A-Za-z0-9_.-]){re.escape(tenant)}(?![A-Za-z0-9_.-])"


def _remember(lake: Lake, entry: Erasure, day: ArchivedDay | None = None) -> None:
    state = lake.state()
    others = [one for one in state.erased if (one.tenant, one.until_ms) != (entry.tenant, entry.until_ms)]
    archived = [
        day if day is not None and (one.table, one.date) == (day.table, day.date) else one for one in state.archived
    ]
    lake.stage_state(msgspec.structs.replace(state, erased=[*others, entry], archived=archived))


def digest_of(partition: Path) -> str:
    """Return a hash over a partition's files, by name; empty where there is none."""
    found = hashlib.sha256()
    files = sorted(partition.glob("*.parquet"))
    for file in files:
        found.update(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest() if files else ""


def _files_digest(day: ArchivedDay) -> str:
    text = "".join(f"{file.name} {file.sha256}\n" for file in day.files)
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
