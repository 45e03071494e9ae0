"""Erasure of a tenant from every table and the archive, with a certificate of what was removed.

The tombstone is written in the commit that removes the rows from the lake. Archived days follow one by one. Then everything
is read again, and the certificate is written. An erasure that is killed continues there when it is repeated.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from tenantq.domain.formatting import show_time
from tenantq.errors import Conflict, Invalid, NotFound, StoreDamaged
from tenantq.journal.export_target import open_target
from tenantq.journal.signing import SigningKey
from tenantq.pipeline.gold.invoice_lines import SUMS, month_sums
from tenantq.pipeline.lake.archive_storage import day_place, read_rows, store, sweep, tenants_in
from tenantq.pipeline.lake.lake import Lake
from tenantq.pipeline.lake.state import ArchivedDay, Erasure, Removal
from tenantq.pipeline.tables import TABLES, LakeTable

CERTIFICATES: Final = "erasures"
_ERASED_NAME: Final = "an erased tenant"


class Certificate(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased and where, and what was found when everything was read again."""

    tenant: str
    reason: str
    erased_at: str
    rows_until: str  # rows of the tenant up to this time stay out
    rows_removed: int
    removals: list[Removal]
    rows_left: dict[str, int]  # by table, and archive/table, as read afterwards
    previous_sha256: str  # of the certificate before; empty for the first
    sha256: str = ""  # of this text without hash and signature
    key_id: str = ""
    signature: str = ""

    def hashed_text(self) -> bytes:
        """Return the bytes that are hashed and signed."""
        return msgspec.json.encode(msgspec.structs.replace(self, sha256="", key_id="", signature=""), order="sorted")


def erase(
    spark: SparkSession, lake: Lake, tenant: str, reason: str, now_ms: int,
    key: SigningKey | None = None, progress: Callable[[str], None] = lambda _: None,
) -> tuple[Certificate, str]:  # fmt: skip
    """Remove a tenant from the lake and its archive; return the certificate and its file.

    Raise NotFound if the tenant has no rows, Conflict if it is under a legal hold.
    """
    if not tenant or not reason.strip():
        raise Invalid("erase: tenant and reason must not be empty. The certificate names both.")
    with lake.locked():
        progress("legal holds")
        if tenant in lake.tables.held_tenants():
            raise Conflict(f"tenant {tenant!r}: is under a legal hold; lift it before erasing", tenant=tenant)
        begun = (one for one in lake.state().erased if one.tenant == tenant and not one.certificate)
        entry = next(begun, None)
        if entry is None:
            entry = _erase_tables(spark, lake, Erasure(tenant, now_ms, reason.strip()), progress)
        entry = _erase_archive(lake, entry, progress)
        progress("reading again")
        return _certify(spark, lake, entry, key, now_ms)


def _erase_tables(spark: SparkSession, lake: Lake, entry: Erasure, progress: Callable[[str], None]) -> Erasure:
    """Commit the tables without the tenant, together with its tombstone."""
    tenant = entry.tenant
    removals: list[Removal] = []
    months = {
        row["period"]: {name: str(row[name]) for name in SUMS}
        for row in month_sums(lake.read(spark, "usage_hourly").where(f.col("tenant") == tenant)).collect()
    }
    for table in _tables_of_tenants(lake):
        progress(table.name)
        counted = lake.read(spark, table.name).groupBy(*table.partitions).agg(
            f.count("*").alias("_rows"), f.count_if(f.col("tenant") == tenant).alias("_of_tenant"),
            f.count_if(_concerns(table, tenant)).alias("_touched"),
        ).where("_touched > 0").collect()  # fmt: skip
        touched = {"/".join(f"{column}={row[column]}" for column in table.partitions) or ".": row for row in counted}
        if touched:
            kept = lake.view(spark, table.name, touched.__contains__).where(f.col("tenant") != tenant)
            lake.stage(_without_mention(kept, table, tenant), table.name, touched.__contains__)
        for name, row in touched.items():
            place = os.path.normpath(f"{table.name}/{name}")
            digests = [
                digest_of(lake.files(table.name, name.__eq__, staged=staged).get(name, [])) for staged in (False, True)
            ]
            removals.append(Removal(place, row["_rows"], row["_of_tenant"], *digests))
    archived = (day for day in lake.state().archived if day.files)
    if not removals and not any(tenant in tenants_in(open_target(day.url), day) for day in archived):
        raise NotFound(f"tenant {tenant!r}: the lake has no rows of this tenant", tenant=tenant)
    entry = msgspec.structs.replace(entry, removals=sorted(removals, key=lambda one: one.partition), months=months)
    lake.stage_state(lake.state().with_erasure(entry))
    lake.commit(erased=tenant)
    return entry


def _erase_archive(lake: Lake, entry: Erasure, progress: Callable[[str], None]) -> Erasure:
    """Rewrite archived days without the tenant, one commit each."""
    for day in lake.state().archived:
        target = open_target(day.url)
        tables = [read_rows(target, file) for file in day.files]
        kept = [_archived_without(rows, TABLES[day.table], entry.tenant) for rows in tables]
        removed = sum(one.num_rows - other.num_rows for one, other in zip(tables, kept, strict=True))
        if kept == tables:
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
        lake.stage_state(lake.state().with_erasure(entry).with_archived(after))
        lake.commit()
        sweep(target, after)
    return entry


def _certify(
    spark: SparkSession, lake: Lake, entry: Erasure, key: SigningKey | None, now_ms: int
) -> tuple[Certificate, str]:
    lake.commit(erased=entry.tenant)  # deletes what a killed erasure left of old versions
    left = _rows_left(spark, lake, entry.tenant)
    if any(left.values()):
        raise StoreDamaged(
            f"tenant {entry.tenant!r}: some rows remain: {left}. Run the erasure again.", tenant=entry.tenant
        )
    earlier = [one for one in lake.state().erased if one.certificate]
    previous = _read(lake, earlier[-1].certificate).sha256 if earlier else ""
    certificate = Certificate(
        tenant=entry.tenant, reason=entry.reason, erased_at=show_time(now_ms), rows_until=show_time(entry.until_ms),
        rows_removed=sum(one.rows_removed for one in entry.removals), removals=entry.removals, rows_left=left,
        previous_sha256=previous,
    )  # fmt: skip
    text = certificate.hashed_text()
    certificate = msgspec.structs.replace(
        certificate, sha256=hashlib.sha256(text).hexdigest(),
        key_id=key.public.id if key else "", signature=key.sign(text) if key else "",
    )  # fmt: skip
    name = f"{CERTIFICATES}/{len(earlier) + 1:06d}.json"
    lake.tables.target.write(name, msgspec.json.format(msgspec.json.encode(certificate)) + b"\n")
    # The tombstone keeps what later runs need. The removals are in the certificate.
    finished = msgspec.structs.replace(entry, removals=[], certificate=name)
    lake.stage_state(lake.state().with_erasure(finished))
    lake.commit()
    return certificate, f"{lake.tables.uri}/{name}"


def check_certificates(lake: Lake) -> list[Certificate]:
    """Return all certificates in order; raise StoreDamaged if one was changed or the chain is broken."""
    found: list[Certificate] = []
    for entry in lake.state().erased:
        if not entry.certificate:
            continue
        one = _read(lake, entry.certificate)
        previous = found[-1].sha256 if found else ""
        if one.sha256 != hashlib.sha256(one.hashed_text()).hexdigest() or one.previous_sha256 != previous:
            raise StoreDamaged(f"certificate {entry.certificate}: this certificate or the one before it was changed")
        found.append(one)
    return found


def _read(lake: Lake, name: str) -> Certificate:
    try:
        return msgspec.json.decode(lake.tables.target.read(name), type=Certificate)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreDamaged(f"certificate {name}: cannot be read: {error}") from error


def _rows_left(spark: SparkSession, lake: Lake, tenant: str) -> dict[str, int]:
    """Read lake and archive again, and count the rows, or archived files, that concern the tenant."""
    left = Counter(
        {
            table.name: lake.read(spark, table.name).where(_concerns(table, tenant)).count()
            for table in _tables_of_tenants(lake)
        }
    )
    old = [name for table in _tables_of_tenants(lake) for name in lake.tables.old_files(table.name)]
    left["old versions"] = sum(lake.tables.has_rows(name, {tenant}) for name in old)
    for day in lake.state().archived:
        for file in day.files:
            rows = read_rows(open_target(day.url), file)
            left[f"archive/{day.table}"] += rows != _archived_without(rows, TABLES[day.table], tenant)
    return dict(left)


def _tables_of_tenants(lake: Lake) -> list[LakeTable]:
    return [table for table in TABLES.values() if table.has_tenants and lake.tables.has(table.name)]


def _concerns(table: LakeTable, tenant: str) -> Column:
    """Select the rows of the tenant, and rows of others that mention it."""
    mine = f.col("tenant") == tenant
    if table.mention is not None:
        mine |= (f.col("kind") == table.mention.kind) & f.col(table.mention.column).rlike(_mention(tenant))
    return mine


def _without_mention(rows: DataFrame, table: LakeTable, tenant: str) -> DataFrame:
    """Remove the tenant's name from rows of others."""
    if table.mention is None:
        return rows
    column = f.col(table.mention.column)
    named = f.regexp_replace(column, _mention(tenant), _ERASED_NAME)
    return rows.withColumn(table.mention.column, f.when(f.col("kind") == table.mention.kind, named).otherwise(column))


def _archived_without(rows: pa.Table, table: LakeTable, tenant: str) -> pa.Table:
    """Return archived rows without the tenant and its name."""
    kept = rows.filter(pc.not_equal(rows["tenant"], tenant))
    if table.mention is not None and kept.num_rows:
        place = kept.schema.get_field_index(table.mention.column)
        texts = [
            re.sub(_mention(tenant), _ERASED_NAME, text) if kind == table.mention.kind else text
            for kind, text in zip(kept["kind"].to_pylist(), kept[table.mention.column].to_pylist(), strict=True)
        ]
        kept = kept.set_column(place, kept.schema.field(place), [texts])
    return kept


def _mention(tenant: str) -> str:
    """Return a pattern, for Java and Python, of the name as a whole word."""
    return rf"(?<![A-Za-z0-9_.-]){re.escape(tenant)}(?![A-Za-z0-9_.-])"


def digest_of(files: list[Path]) -> str:
    """Return a hash over the contents of a partition's files, in order; empty if there are none."""
    found = hashlib.sha256()
    for number, file in enumerate(files):
        found.update(f"{number:05d}.parquet {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest() if files else ""


def _files_digest(day: ArchivedDay) -> str:
    text = "".join(f"{file.name} {file.sha256}\n" for file in day.files)
    return hashlib.sha256(text.encode()).hexdigest() if text else ""
