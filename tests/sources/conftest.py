"""A server to migrate to, and real systems to migrate from."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command import serving
from tests.postgres_servers import PostgresServer
from tests.redis_servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.command import Served


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a server. Tests use different tenant names."""
    with serving(tmp_path_factory.mktemp("target") / "data") as served:
        yield served


@pytest.fixture(scope="package")
def postgres() -> Iterator[str]:
    """Run PostgreSQL and return its URL."""
    server = PostgresServer("fsync=off")
    yield server.url
    server.stop()


@pytest.fixture(scope="package")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run RabbitMQ without its port mapper, on loopback only, and return its URL."""
    program = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
    if not program.exists():
        pytest.skip("RabbitMQ is not installed: install rabbitmq-server to test migrations from it")
    home = tmp_path_factory.mktemp("rabbitmq")
    port, inner = free_port(), free_port()
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
