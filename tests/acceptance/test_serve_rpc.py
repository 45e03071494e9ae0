"""``tenantq serve --rpc``: where it listens for Cap'n Proto, and the errors if it cannot."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import capnp

from tenantq.rpc.schema import PATH
from tenantq.settings import RPC_DEFAULT
from tests.acceptance.command import ADMIN_TOKEN, COMMAND, SECONDS_MAX, call, environment, serving

PROJECT = Path(__file__).resolve().parents[2]
WITHOUT_PYCAPNP = (
    "import sys; sys.modules['capnp'] = None; from tenantq.cli.main import main; sys.argv[0] = 'tenantq'; main()"
)


def test_server_prints_its_capnp_address(tmp_path: Path) -> None:
    """Port 0 takes a free one, and the session in docs/reference/rpc.md works unchanged."""
    with serving(tmp_path / "data", "--rpc", "127.0.0.1:0") as served:
        (port,) = re.findall(r"^Cap'n Proto on 127\.0\.0\.1:(\d+)$", served.output, re.MULTILINE)
        guide = (PROJECT / "docs" / "reference" / "rpc.md").read_text()
        (program,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
        program = program.replace("7071", port)
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
            env=environment(TENANTQ_TOKEN=ADMIN_TOKEN),
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout == "b'hello' attempt 1\nnot_found: queue 'no-such-queue' does not exist\n"
        served.process.terminate()
        _, err = served.process.communicate(timeout=SECONDS_MAX)
    assert served.process.returncode == 0
    assert f"rpc=127.0.0.1:{port}" in err


def test_requested_rpc_address_in_use_is_an_error(tmp_path: Path) -> None:
    """Flag or environment: the error names it, with the same exit code as for HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        start = ("serve", "--data-dir", tmp_path / "data", "--http", "127.0.0.1:0")
        for done in (call(*start, TENANTQ_RPC=address), call(*start, "--rpc", address)):
            assert (done.code, done.out, done.err.count("\n")) == (6, "", 1), done.err
            assert f"rpc: cannot listen on {address}: another process listens there" in done.err
            assert "--rpc" in done.err
    done = call(*start, "--rpc", "nowhere")
    assert (done.code, "rpc: 'nowhere' is not HOST:PORT" in done.err) == (2, True)


def test_http_is_served_without_the_rpc_extra(tmp_path: Path) -> None:
    """One line says what to install. If Cap'n Proto was requested, it is an error."""
    asked = _without_pycapnp(tmp_path, "127.0.0.1:0")
    _, err = asked.communicate(timeout=SECONDS_MAX)
    assert (asked.returncode, err.count("\n"), "pip install '.[rpc]'" in err) == (2, 1, True), err
    default = _without_pycapnp(tmp_path, None)
    assert default.stdout is not None
    assert default.stdout.readline().startswith("ready on http://")
    default.terminate()
    _, err = default.communicate(timeout=SECONDS_MAX)
    (line,) = [line for line in err.splitlines() if "Cap'n Proto" in line]
    assert "INFO" in line
    assert "pip install '.[rpc]'" in line


def _without_pycapnp(tmp_path: Path, rpc: str | None) -> subprocess.Popen[str]:
    variables = environment(TENANTQ_ADMIN_TOKEN=ADMIN_TOKEN)
    variables.pop("TENANTQ_RPC")
    if rpc is not None:
        variables["TENANTQ_RPC"] = rpc
    return subprocess.Popen(
        [sys.executable, "-c", WITHOUT_PYCAPNP, "serve", "--data-dir", tmp_path / "data", "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
    )


def test_default_rpc_address_in_use_is_a_warning(tmp_path: Path) -> None:
    """The second server on a machine serves HTTP only."""
    host, _, port = RPC_DEFAULT.partition(":")
    try:
        taken = socket.create_server((host, int(port)))
    except OSError:
        taken = None  # another process has it, which serves the test as well
    variables = environment(TENANTQ_ADMIN_TOKEN=ADMIN_TOKEN)
    variables.pop("TENANTQ_RPC")
    process = subprocess.Popen(
        [COMMAND, "serve", "--data-dir", str(tmp_path / "data"), "--http", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready on http://")
    process.terminate()
    _, err = process.communicate(timeout=SECONDS_MAX)
    if taken is not None:
        taken.close()
    (line,) = [line for line in err.splitlines() if "Cap'n Proto" in line]
    assert f"no Cap'n Proto on {RPC_DEFAULT}. rpc: cannot listen on {RPC_DEFAULT}: another process listens" in line
    assert "WARNING" in line


def test_wheel_contains_the_schema(tmp_path: Path) -> None:
    """Clients in other languages need it."""
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert ZipFile(wheel).read("tenantq/rpc/tenantq.capnp") == PATH.read_bytes()
    assert capnp.load(str(PATH)).Session is not None
