"""Every command of the tutorial, in order, prints what the page shows."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.command import COMMAND, environment
from tests.docs.sessions import Step, run_session, steps
from tests.pipeline.conftest import FAST_STARTUP, SMALL_DATA
from tests.redis_servers import free_port

PROJECT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 570


@pytest.mark.timeout(600)  # it starts Spark three times, like the reader
def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    """From the first tenant to the invoices; only the installation is left out."""
    venv, install, path, directory, *session = steps((PROJECT / "docs" / "tutorial.md").read_text())
    assert venv.command == "python3 -m venv .venv"
    assert install.command == ".venv/bin/pip install --quiet '.[console,parquet]'"
    assert path.command == 'export PATH="$PWD/.venv/bin:$PATH"'
    assert directory.command == "mkdir tutorial && cd tutorial"
    session.remove(Step("make -C .. pipeline", ""))
    subprocess.run(["make", "--dry-run", "--silent", "pipeline"], check=True, cwd=PROJECT, capture_output=True)
    assert len(session) > 30
    spark = {"spark.driver.extraJavaOptions": FAST_STARTUP, "spark.ui.enabled": "false", **SMALL_DATA}
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in spark.items()))
    port = free_port()
    variables = environment(
        PATH=f"{Path(COMMAND).parent}{os.pathsep}{os.environ['PATH']}",
        XDG_CONFIG_HOME=str(tmp_path),
        SPARK_CONF_DIR=str(tmp_path),
        TENANTQ_HTTP=f"127.0.0.1:{port}",
        TENANTQ_URL=f"http://127.0.0.1:{port}",
    )
    differences = run_session(session, tmp_path, variables, SECONDS_MAX)
    assert not differences, "\n\n".join(differences)
