"""The Spark session: in UTC, with the settings that the tables rely on, and the Java process behind it."""

from __future__ import annotations

import logging
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
_END_S: Final = 20  # how long Java may take to end
_ENDING_S: Final = 1
_LIBRARIES: Final = {"pyspark": "Spark", "py4j": "Spark", "pyarrow": "Arrow"}
_LOCAL_JAVA: Final = " -XX:+UseParallelGC -XX:TieredStopAtLevel=1"
"""Large tables are computed in Python. Java's second compiler would take 20 s of CPU and save less."""
_LOCAL_PARTITIONS: Final = 64  # of a shuffle, before Spark coalesces small ones; each is a file per task
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.execution.replaceHashWithSortAgg": "true",  # message lives are sorted before they are merged
    "spark.sql.files.maxPartitionBytes": "32m",  # about a million rows, which compress well
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",  # listing directories is cheaper than a job that does
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # otherwise each column asks Java for its call site
    "spark.sql.ui.explainMode": "simple",  # shorter texts of plans
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ansi.enabled": "true",
}
SMALL_ROWS: Final = 150_000
"""So many rows are few: compiling code for a stage takes longer than interpreting it, and one task is enough."""
_SMALL_SETTINGS: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.optimizer.disableHints": "true",  # a broadcast is a job; with one task, rows need not be sent anywhere
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
MEDIUM_ROWS: Final = 3_000_000
"""Up to this many rows, one task writes a table that is not split."""
_MEDIUM_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",  # planning each stage again costs more than it saves
    "spark.sql.shuffle.partitions": "4",
}

_FUNCTIONS: Final = (
    "col",
    "lit",
    "when",
    "sum",
    "max",
    "min",
    "coalesce",
    "struct",
    "concat",
    "concat_ws",
    "size",
    "get",
)
_JAVA_CLASSES: Final = {
    "functions": _FUNCTIONS,
    "org.apache.spark.sql.functions": _FUNCTIONS,
    "PythonUtils": ("toSeq",),
    "PythonSQLUtils": ("unresolvedNamedLambdaVariable", "lambdaFunction", "fn"),
    "org.apache.spark.sql.classic.SparkSession": ("getActiveSession",),
    "org.apache.spark.sql.classic.SparkSession$": ("MODULE$",),
}
"""Classes that PySpark looks up for each column or action, with their members that it uses most."""


def open_session(
    master: str | None = None, settings: dict[str, str] | None = None, *, quiet: bool = False, rows: int | None = None
) -> SparkSession:
    """Return a session on ``master`` (default ``local[*]``); raise Unavailable if Java or PySpark is missing.

    With ``rows``, about how many will be processed, a local session is tuned for few or for many.

    ``quiet`` hides Java's stderr unless Java does not start. Workers of a cluster get this package; the libraries it needs
    must be installed there.
    """
    try:
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415  # an extra: only the pipeline needs it
        from pyspark.errors import PySparkException  # noqa: PLC0415
        from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError as error:
        raise Unavailable(
            "the pipeline requires pyspark: run 'make pipeline' in the checkout, or pip install '.[spark]'"
        ) from error
    _find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers must have the same libraries
    local = master is None or master.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    java = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"
    wanted = {**_SETTINGS, "spark.driver.extraJavaOptions": java}
    if local:  # this Java does all the work
        wanted["spark.driver.extraJavaOptions"] += _LOCAL_JAVA
        wanted["spark.sql.shuffle.partitions"] = f"{_LOCAL_PARTITIONS}"
        if rows is not None and rows <= MEDIUM_ROWS:
            wanted |= _MEDIUM_SETTINGS | (_SMALL_SETTINGS if rows <= SMALL_ROWS else {})
    wanted |= settings or {}
    conf = SparkConf().setAppName("tenantq pipeline").setMaster(master or "local[*]").setAll(list(wanted.items()))
    if SparkContext._active_spark_context is not None:  # noqa: SLF001  # a new connection to Java has no active session
        return SparkSession.builder.getOrCreate()
    with tempfile.TemporaryFile() as said:
        # In its own process group, so that Ctrl-C at the terminal reaches only this process and a micro-batch can end.
        apart = {"start_new_session": True, **({"stdout": said, "stderr": said} if quiet else {})}
        try:
            gateway = launch_gateway(conf, apart)  # type: ignore[no-untyped-call]  # PySpark has no types for it
            session = SparkSession(SparkContext(conf=conf, gateway=gateway))
        except (PySparkException, RuntimeError, OSError) as error:
            said.seek(0)
            lines = [line for line in said.read().decode(errors="replace").splitlines() if "WARN" not in line]
            what = next((line for line in lines if "Exception" in line or "Error" in line), str(error))
            raise Unavailable(f"Spark did not start on {master or 'local[*]'}: {what.strip()[:300]}") from error
    _remember_java_classes(session)
    if quiet:
        _keep_traces_quiet(session)
    if not local:
        place = Path(session.sparkContext._temp_dir)  # noqa: SLF001  # removed with Java, however that ends
        session.sparkContext.addPyFile(str(_zipped(place)))
    return session


def _remember_java_classes(session: SparkSession) -> None:
    """Look up Java classes once. Each lookup searches all jars, and the tables of a run need thousands."""
    java = session.sparkContext._jvm  # noqa: SLF001  # there is no public name
    assert java is not None
    for name, members in _JAVA_CLASSES.items():
        found = getattr(java, name)
        for member in members:
            setattr(found, member, getattr(found, member))
        setattr(java, name, found)


def _keep_traces_quiet(session: SparkSession) -> None:
    """Keep py4j and the accumulator server from printing traces when Java ends. Errors are raised all the same."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(
        lambda record: Path(record.pathname).parent.name != "py4j"
    )  # it uses the root logger, too
    counters = session.sparkContext._accumulatorServer  # noqa: SLF001  # there is no public name
    counters.handle_error = lambda *_: None  # type: ignore[method-assign]  # the hook of socketserver


def _zipped(directory: Path) -> Path:
    """Return this package as a file that Spark sends to its workers, so that they run the driver's code."""
    package = Path(__file__).parent.parent
    file = directory / "tenantq.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in sorted(package.rglob("*.py")):
            archive.write(module, module.relative_to(package.parent))
    return file


def is_open() -> bool:
    """Return whether this process has an open Spark session."""
    return _java() is not None


def end_java() -> None:
    """End Java, if this process started it, with its Python workers and temporary files, and wait for that."""
    process = _java()
    if process is None:
        return
    assert process.stdin is not None
    process.stdin.close()  # Java ends when its stdin closes
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _java() -> subprocess.Popen[bytes] | None:
    try:
        from pyspark import SparkContext  # noqa: PLC0415  # as above
    except ImportError:
        return None
    gateway = SparkContext._gateway  # noqa: SLF001  # there is no public way to the process
    return gateway.proc if gateway is not None else None


def _java_ended() -> bool:
    java = _java()
    if java is None:
        return False
    try:
        java.wait(_ENDING_S)  # a call fails shortly before the process has ended
    except subprocess.TimeoutExpired:
        return False
    return True


@contextmanager
def spark_failures() -> Iterator[None]:
    """Turn a failure of Spark into one line: the innermost cause, or that Java has ended."""
    try:
        yield
    except TenantqError:
        raise
    except Exception as error:
        if _java_ended():
            raise Unavailable(
                "Java ended unexpectedly. The tables are unchanged. It was killed, or needs more memory "
                "(--driver-memory)."
            ) from error
        who = _LIBRARIES.get(type(error).__module__.partition(".")[0])
        if who is None:
            raise
        raise Unavailable(f"{who} failed; the tables are unchanged: {_cause(str(error))}") from error


def _cause(text: str) -> str:
    """Return the innermost cause in a Java trace, else the first line."""
    causes = re.findall(r"^\s*(?:Caused by: |: )?([\w.$]*(?:Exception|Error)): (.+)$", text, re.MULTILINE)
    if causes:
        name, message = causes[-1]
        return f"{name.rpartition('.')[2]}: {message}"[:300]
    return (text.strip().splitlines() or ["no reason given"])[0][:300]


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
