"""A journal behind a URL: what is new of it is fetched into the lake, processed from there, and forgotten.

Segments are read more than once, by the verification and by Spark. A copy costs one download, and Spark needs no library for the store.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from tenantq.errors import Invalid, Unavailable
from tenantq.journal.export_target import open_target, shown_url
from tenantq.pipeline.new_segments import is_remote, new_names
from tenantq.pipeline.run import Options, RunReport, process, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tenantq.journal.export_target import ExportTarget
    from tenantq.pipeline.lake import Lake

_AT_ONCE: Final = 8
FETCH: Final = "fetch segments"
"""The stage that comes first."""


def run_from(
    spark: SparkSession, journal: str, lake: Lake, options: Options, progress: Callable[[str], None] = lambda _: None
) -> RunReport:
    """Process what the journal, a directory or any URL that fsspec reaches, has and the lake has not.

    Raise Invalid for a URL that means nothing or holds nothing, Unavailable where it cannot be read.
    """
    if not is_remote(journal):
        return run(spark, journal, lake, options, progress)
    target = open_target(journal)
    with lake.locked():
        progress(FETCH)
        try:
            if not target.names(""):
                raise Invalid(f"journal {shown_url(journal)}: holds nothing; is it the export's target?")
            wanted, strays, segments = new_names(spark, target, lake, options)
            place = lake.incoming()
            _fetch(target, [*wanted, *strays, *segments.values()], place)
        except OSError as error:
            raise Unavailable(f"journal {shown_url(journal)}: cannot be read: {str(error)[:300]}") from error
        try:
            return process(spark, str(place), lake, wanted, strays, options, progress)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _fetch(target: ExportTarget, names: list[str], place: Path) -> None:
    """Copy files; one that is gone meanwhile is left out, and missed by the verification."""

    def copy(name: str) -> None:
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            file.write_bytes(target.read(name))
        except FileNotFoundError:
            file.unlink(missing_ok=True)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(copy, names):
            pass
