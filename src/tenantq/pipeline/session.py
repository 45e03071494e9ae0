"""The Spark session: quiet, in UTC, with the settings that the tables rely on."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenantq.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ansi.enabled": "true",
}


def open_session(master: str | None = None, settings: dict[str, str] | None = None) -> SparkSession:
    """Return a session on ``master`` (default ``local[*]``); raise Unavailable where Java or pyspark is missing."""
    try:
        from pyspark.errors import PySparkException  # noqa: PLC0415  # an extra: only the pipeline needs it
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable("the pipeline needs PySpark: install tenantq[spark]") from error
    _find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers must see the same libraries
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1" if master is None or master.startswith("local") else "")
    builder = SparkSession.builder.appName("tenantq pipeline").master(master or "local[*]")
    quiet = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
    for name, value in {**_SETTINGS, "spark.driver.extraJavaOptions": quiet, **(settings or {})}.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        raise Unavailable(f"Spark did not start on {master or 'local[*]'}: {error}") from error


def _find_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return
    if shutil.which("java") is None:
        raise Unavailable("the pipeline needs Java 17 or later: install it (openjdk-17-jre-headless) or set JAVA_HOME")
