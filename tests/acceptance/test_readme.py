"""The README: its commands and its program do what it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.acceptance.command import COMMAND, SECONDS_MAX, environment
from tests.docs.sessions import Step, blocks, run_session, steps
from tests.redis_servers import free_port

PROJECT = Path(__file__).resolve().parents[2]
README = (PROJECT / "README.md").read_text()


def test_the_readme_works(tmp_path: Path) -> None:
    """Each command prints what the README shows, and so does the program, also for a reader who runs it twice."""
    run, *session = steps(README)
    assert run.command == "make run"
    subprocess.run(["make", "--dry-run", "--silent", "run"], check=True, cwd=PROJECT, capture_output=True)
    assert len(session) == 4
    (program,) = blocks(README, "python")
    assert program.count("\n") <= 12
    (tmp_path / "program.py").write_text(program.replace("http://127.0.0.1:7070", "http://" + (address := _address())))
    session += [Step("python program.py", "hello ann\n")] * 2 + [Step("kill %1", "")]
    variables = environment(
        PATH=f"{Path(COMMAND).parent}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        XDG_CONFIG_HOME=str(tmp_path),
        TENANTQ_HTTP=address,
        TENANTQ_URL=f"http://{address}",
    )
    differences = run_session(session, tmp_path, variables, SECONDS_MAX)
    assert not differences, "\n\n".join(differences)


def _address() -> str:
    return f"127.0.0.1:{free_port()}"


def test_first_screen_of_the_readme_introduces_the_product() -> None:
    """The first two sentences, the picture and a program are within the first 50 lines."""
    assert README.split("\n")[2].startswith("tenantq is a durable work queue")
    assert README[: README.index("```python")].count("\n") <= 40
