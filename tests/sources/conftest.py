"""A server to migrate to, and real systems to migrate from."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.acceptance.command import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.command import Served


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a server. Tests use different tenant names."""
    with serving(tmp_path_factory.mktemp("target") / "data") as served:
        yield served


@pytest.fixture(scope="package")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run PostgreSQL, which refuses to run as root, and return its URL."""
    home = tmp_path_factory.mktemp("postgres")
    user = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
    if os.getuid() == 0:
        for path in (home, *home.parents):
            if str(path).startswith("/tmp") and path.parent != path:  # noqa: S108  # pytest's own directory
                path.chmod(path.stat().st_mode | 0o055)
        os.chown(home, pwd.getpwnam(user).pw_uid, -1)
    port = _free_port()
    as_user = ["setpriv", f"--reuid={user}", "--clear-groups"] if os.getuid() == 0 else []
    data = home / "data"
    make = [*as_user, _tool("initdb"), "-D", str(data), "-U", "test", "-A", "trust", "-N", "--locale=C", "-E", "UTF8"]
    subprocess.run(make, stdout=subprocess.DEVNULL, check=True)
    command = [
        _tool("postgres"),
        "-D",
        str(data),
        "-p",
        str(port),
        "-k",
        str(home),
        "-c",
        "fsync=off",
        "-h",
        "127.0.0.1",
    ]
    process = subprocess.Popen([*as_user, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"postgresql://test@127.0.0.1:{port}/postgres"
    try:
        _wait_for(url, process)
        yield url
    finally:
        process.send_signal(signal.SIGINT)  # does not wait for clients
        process.wait()


def _tool(name: str) -> str:
    """Return the path of a program of PostgreSQL; Debian keeps them off the PATH."""
    for directory in (*os.environ["PATH"].split(":"), *_debian_directories()):
        if os.access(f"{directory}/{name}", os.X_OK):
            return f"{directory}/{name}"
    raise FileNotFoundError(f"{name}: install PostgreSQL, as make test does")


def _debian_directories() -> list[str]:
    return [str(version / "bin") for version in sorted(Path("/usr/lib/postgresql").glob("*"))]


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "PostgreSQL has ended"
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("PostgreSQL does not answer")


@pytest.fixture(scope="package")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run RabbitMQ without its port mapper, on loopback only, and return its URL."""
    program = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    if not program.exists():
        pytest.skip("RabbitMQ is not installed: install rabbitmq-server to test migrations from it")
    home = tmp_path_factory.mktemp("rabbitmq")
    port, inner = _free_port(), _free_port()
    variables = {
        "HOME": str(home),
        "RABBITMQ_NODENAME": f"test{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(inner),
        "RABBITMQ_MNESIA_BASE": str(home),
        "RABBITMQ_LOG_BASE": str(home),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            f"-start_epmd false -erl_epmd_port {inner} -kernel inet_dist_use_interface {{127,0,0,1}}"
        ),
    }
    process = subprocess.Popen(
        [str(program)], env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(600):
            assert process.poll() is None, "RabbitMQ has ended"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"amqp://guest:guest@127.0.0.1:{port}/%2F"
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
