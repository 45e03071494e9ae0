"""The Spark session: quiet, in UTC, with the settings that the tables rely on."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tenantq.errors import TenantqError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_JAVA_MIN: Final = 17
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",  # listing is cheaper than a job that lists
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ansi.enabled": "true",
}


def open_session(
    master: str | None = None, settings: dict[str, str] | None = None, *, quiet: bool = False
) -> SparkSession:
    """Return a session on ``master`` (default ``local[*]``); raise Unavailable where Java or pyspark is missing.

    ``quiet``: what Java says on stderr is kept aside, and told only if it does not start. A cluster's workers are given this
    package; the libraries it needs must be there.
    """
    try:
        from pyspark.errors import PySparkException  # noqa: PLC0415  # an extra: only the pipeline needs it
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable("the pipeline needs PySpark: install tenantq[spark]") from error
    _find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers must see the same libraries
    local = master is None or master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("tenantq pipeline").master(master or "local[*]")
    log = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
    for name, value in {**_SETTINGS, "spark.driver.extraJavaOptions": log, **(settings or {})}.items():
        builder = builder.config(name, value)
    with tempfile.TemporaryFile() as said, _stderr_to(said.fileno() if quiet else None):
        try:
            session = builder.getOrCreate()
        except (PySparkException, RuntimeError, OSError) as error:
            said.seek(0)
            lines = [line for line in said.read().decode(errors="replace").splitlines() if "WARN" not in line]
            what = next((line for line in lines if "Exception" in line or "Error" in line), str(error))
            raise Unavailable(f"Spark did not start on {master or 'local[*]'}: {what.strip()[:300]}") from error
    if not local:
        session.sparkContext.addPyFile(str(_zipped(Path(tempfile.mkdtemp(prefix="tenantq-")))))
    return session


def _zipped(directory: Path) -> Path:
    """Return this very package as a file that Spark gives to its workers, so that they run what the driver runs."""
    package = Path(__file__).parent.parent
    file = directory / "tenantq.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in sorted(package.rglob("*.py")):
            archive.write(module, module.relative_to(package.parent))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return file


@contextmanager
def spark_failures() -> Iterator[None]:
    """Turn what Spark fails with into one line: its first, which says what happened."""
    try:
        yield
    except TenantqError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in {"pyspark", "py4j"}:
            raise
        raise Unavailable(f"Spark failed, the tables are as before: {_cause(str(error))}") from error


def _cause(text: str) -> str:
    """Return the innermost cause that a Java trace names, else the first line."""
    causes = re.findall(r"^\s*(?:Caused by: |: )?([\w.$]*(?:Exception|Error)): (.+)$", text, re.MULTILINE)
    if causes:
        name, message = causes[-1]
        return f"{name.rpartition('.')[2]}: {message}"[:300]
    return (text.strip().splitlines() or ["no reason given"])[0][:300]


@contextmanager
def _stderr_to(descriptor: int | None) -> Iterator[None]:
    """Let processes that are started meanwhile write their stderr elsewhere."""
    if descriptor is None:
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _find_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home and (Path(home) / "bin" / "java").exists() else shutil.which("java")
    what = f"the pipeline needs Java {_JAVA_MIN} or later: install it (openjdk-17-jre-headless) or set JAVA_HOME"
    if java is None:
        raise Unavailable(what)
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr  # noqa: S603  # the user's own Java
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{java}: does not run: {error}; {what}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is not None and int(found.group(1)) < _JAVA_MIN:
        raise Unavailable(f"{java} is Java {found.group(1)}; {what}")
