"""Fixtures: a session with the connector, a journal with history, and a real server on loopback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tenantq.client import Client
from tenantq.journal.export_target import DirectoryTarget
from tenantq.pipeline.connector import register
from tests.contract.client.conftest import RealServer
from tests.pipeline.journals import write_history

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession


class TenantAccess:
    """A tenant of a real server, with its URL, token and client."""

    def __init__(self, server: RealServer, tenant: str) -> None:
        settings = server.settings(tenant)
        assert settings.token is not None
        self.server, self.tenant, self.url, self.token = server, tenant, settings.url, settings.token
        self.client = Client(settings=settings)

    def options(self, **more: Any) -> dict[str, Any]:
        """Return the connector options for this tenant."""
        return {"url": self.url, "token": self.token, **more}

    def bodies(self, queue: str) -> list[bytes]:
        """Return the bodies that wait in a queue, sorted."""
        found, cursor = list[bytes](), None
        while True:
            page = self.client.queue(queue).peek(1_000, cursor=cursor)
            found += [message.body for message in page.messages]
            cursor = page.cursor
            if cursor is None:
                return sorted(found)


@pytest.fixture(scope="session")
def connected(spark: SparkSession) -> SparkSession:
    """Return a session with the format registered."""
    register(spark)
    return spark


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> DirectoryTarget:
    """Return a journal of two shards that no test changes."""
    target = DirectoryTarget(tmp_path_factory.mktemp("journal"))
    write_history(target, rounds=60)
    write_history(target, rounds=40, seed=2, shard="1")
    return target


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Run a server on loopback."""
    started = RealServer(tmp_path_factory.mktemp("server") / "data")
    started.start()
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def tenant_access(server: RealServer) -> Iterator[TenantAccess]:
    """Return access to a tenant as its administrator."""
    found = TenantAccess(server, "acme")
    yield found
    found.client.close()


def read_journal(spark: SparkSession, target: DirectoryTarget | Path, **options: Any) -> DataFrame:
    """Read a journal with the connector."""
    path = target.path if isinstance(target, DirectoryTarget) else target
    return spark.read.format("tenantq").option("journal", str(path)).options(**options).load()
