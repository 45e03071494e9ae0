"""A real Spark cluster of a master and two workers gives the same tables as one machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from tests.pipeline.conftest import FAST_STARTUP, digests
from tests.pipeline.journals import MINUTE, write_history

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenantq.journal.export_target import DirectoryTarget
    from tenantq.pipeline.lake.lake import Lake
    from tests.pipeline.conftest import RunPipeline

_HOME = Path(pyspark.__file__).parent
_SMALL = f"""
spark.driver.defaultJavaOptions {FAST_STARTUP}
spark.executor.defaultJavaOptions {FAST_STARTUP}
spark.executor.memory 512m
spark.sql.shuffle.partitions 3
spark.sql.codegen.wholeStage false
spark.sql.ui.explainMode simple
"""


@contextmanager
def daemon(name: str, *options: str, until: str, environment: dict[str, str]) -> Iterator[str]:
    """Run one of Spark's servers and yield the log line with its address."""
    command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *options]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        told = next((line for line in process.stderr if until in line), "")
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        try:
            assert told, f"{name} did not start"
            yield told
        finally:
            process.terminate()
            process.wait()
            reader.join()


def test_a_cluster_writes_the_same_bytes_as_one_machine(
    journal: DirectoryTarget, lake: Lake, pipeline: RunPipeline, tmp_path: Path
) -> None:
    """The command with --master runs on two workers, which receive the program."""
    write_history(journal, seed=6, rounds=12, every_ms=25 * MINUTE)
    pipeline()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(_SMALL, encoding="ascii")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "SPARK_CONF_DIR"}},
        "SPARK_HOME": str(_HOME), "SPARK_DAEMON_JAVA_OPTS": FAST_STARTUP, "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1",
    }  # fmt: skip
    with ExitStack() as stack:
        told = stack.enter_context(daemon("master.Master", until="Starting Spark master at", environment=environment))
        master = told.split()[-1]
        for number in range(2):
            place = ["--cores", "1", "--memory", "512m", "--work-dir", str(tmp_path / f"worker{number}"), master]
            stack.enter_context(
                daemon("worker.Worker", *place, until="Successfully registered", environment=environment)
            )
        command = [
            sys.executable, "-m", "tenantq", "pipeline", "run", "--journal", str(journal.path), "--lake", str(tmp_path / "other"),
            "--master", master, "--driver-memory", "600m",
        ]  # fmt: skip
        mine = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "SPARK_CONF_DIR": str(tmp_path / "conf")}
        ran = subprocess.run(command, check=False, capture_output=True, text=True, env={**environment, **mine})
    assert ran.returncode == 0, ran.stderr
    assert all(list((tmp_path / f"worker{number}").glob("*/*/stderr")) for number in range(2))
    assert digests(type(lake)(tmp_path / "other")) == digests(lake)
