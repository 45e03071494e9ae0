"""What a journal has that the lake has not: manifests that were not accepted before, and segments without one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tenantq.errors import Invalid
from tenantq.journal.export_target import DirectoryTarget, shown_url
from tenantq.journal.manifest import MANIFESTS, manifest_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tenantq.journal.export_target import ExportTarget
    from tenantq.pipeline.lake import Lake
    from tenantq.pipeline.run import Options


def is_remote(journal: str) -> bool:
    """Tell whether a journal is behind a URL that is no file://."""
    scheme, found, _ = journal.partition("://")
    return bool(found) and scheme != "file"


def journal_path(journal: str) -> str:
    """Return the directory that a path or a file:// URL names; raise Invalid for what cannot be read."""
    scheme, found, rest = journal.partition("://")
    if is_remote(journal):
        raise Invalid(
            f"journal {shown_url(journal)}: this needs a directory, a mounted one, or a file:// URL; tenantq pipeline run "
            f"fetches what is new from {scheme}://"
        )
    path = Path(unquote(rest.removeprefix("localhost")) if found else journal).absolute()
    try:
        if not path.is_dir():
            raise Invalid(f"journal {journal}: is no directory; give the one that holds date=… and manifest/")
        names = [one.name for one in path.iterdir()]
        if (
            MANIFESTS in names
        ):  # a segment that cannot be read is quarantined; manifests that cannot be listed are not known
            for shard in (path / MANIFESTS).iterdir():
                next(shard.iterdir() if shard.is_dir() else iter(()), None)
    except OSError as error:
        what = f"{error.filename or journal}: cannot be read: {error.strerror}"
        raise Invalid(f"journal {what}; check its permissions") from error
    if names and MANIFESTS not in names and not any(name.startswith("date=") for name in names):
        raise Invalid(f"journal {journal}: holds neither date=… nor {MANIFESTS}/; is it the data directory above it?")
    return str(path)


def new_manifests(spark: SparkSession, journal: str, lake: Lake, options: Options) -> tuple[list[str], list[str]]:
    """Return manifests that were not accepted before, and segments that no manifest names."""
    wanted, strays, _ = new_names(spark, DirectoryTarget(Path(journal_path(journal))), lake, options)
    return wanted, strays


def new_names(
    spark: SparkSession, target: ExportTarget, lake: Lake, options: Options
) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the same of any place, and the segments that are there by their manifests' names."""
    done = {row["manifest"] for row in lake.read(spark, "segments").where("reason = ''").select("manifest").collect()}
    files = {_span(name): name for name in target.names("") if name.endswith(".parquet")}
    manifests = manifest_names(target)
    described = {_span(name) for name in manifests}
    wanted = [name for name in manifests if name not in done and _in_range(files.get(_span(name), ""), options)]
    strays = [file for span, file in sorted(files.items()) if span not in described and _in_range(file, options)]
    return wanted, strays, {name: files[_span(name)] for name in wanted if _span(name) in files}


def _span(name: str) -> tuple[str, str]:
    """Return (shard, span of records) of a segment's or manifest's name."""
    *_, shard, file = name.split("/") if name.count("/") else ("", "", name)
    return shard, file.rpartition(".")[0]


def _in_range(file: str, options: Options) -> bool:
    date = file.removeprefix("date=")[:10] if file.startswith("date=") else ""
    return not date or (
        (not options.from_date or date >= options.from_date) and (not options.to_date or date <= options.to_date)
    )
