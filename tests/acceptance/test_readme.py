"""The session in the README, typed as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tenantq.settings import RPC_DEFAULT
from tests.acceptance.command import COMMAND, SECONDS_MAX, environment, read_until

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
ADDRESS = "127.0.0.1:7070"
BETWEEN = "-- the next command --"


def _steps() -> list[tuple[str, str]]:
    """Return the commands of the session, and what they are said to print."""
    (session,) = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", session, re.MULTILINE)
    return [(command, printed) for command, printed in steps]


def test_the_readme_session_runs(tmp_path: Path) -> None:
    """Each command prints what the README says, where … stands for anything; then the Python program does."""
    steps = _steps()
    assert len(steps) == 6
    (token, _), (serve, ready), *client_steps = steps
    assert token.startswith("export TENANTQ_TOKEN=$(openssl")
    path = f"{Path(COMMAND).parent}{os.pathsep}{os.environ['PATH']}"
    variables = environment(PATH=path, XDG_CONFIG_HOME=str(tmp_path))
    secret = subprocess.run(
        ["bash", "-c", f"{token}; echo $TENANTQ_TOKEN"], capture_output=True, text=True, check=True, env=variables
    ).stdout.strip()
    variables |= {"TENANTQ_TOKEN": secret}
    server = subprocess.Popen(  # another port than the README's: that one may be in use where this runs
        ["bash", "-c", f"exec env {serve.removesuffix(' &')}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**variables, "TENANTQ_HTTP": "127.0.0.1:0", "TENANTQ_RPC": "127.0.0.1:0"},
    )  # fmt: skip
    try:
        rpc, http = read_until(server, "ready on ").splitlines()
        address = http.removeprefix("ready on http://")
        assert rpc.startswith("Cap'n Proto on 127.0.0.1:")
        assert ready == f"Cap'n Proto on {RPC_DEFAULT}\nready on http://{ADDRESS}\n"
        variables |= {"TENANTQ_URL": f"http://{address}"}
        script = f"\necho; echo '{BETWEEN}'\n".join(command for command, _ in client_steps).replace(ADDRESS, address)
        typed = _typed(["bash", "-ec", script], tmp_path, variables)
        for (command, said), printed in zip(client_steps, typed.split(f"{BETWEEN}\n"), strict=True):
            pattern = ".*".join(re.escape(part) for part in said.strip().split("…"))
            assert re.fullmatch(pattern, printed.strip()), (command, printed)
        (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
        for _ in range(2):  # a reader may try it twice
            told = _typed([sys.executable, "-c", program.replace(ADDRESS, address)], tmp_path, variables)
            assert told == "hello ann, attempt 1\n"
    finally:
        server.terminate()
        _, log = server.communicate(timeout=SECONDS_MAX)
    assert (server.returncode, log) == (0, "")


def _typed(command: list[str], place: Path, variables: dict[str, str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False, cwd=place, env=variables
    )
    if done.returncode or done.stderr:
        pytest.fail(f"{command}: {done.returncode} {done.stderr}")
    return done.stdout


def test_the_first_screen_holds_the_session() -> None:
    """Who opens the page sees what it is and how it is used, without scrolling far."""
    assert README.index("```python") < README.index("\n## ")
    assert README[: README.index("```python")].count("\n") <= 35
