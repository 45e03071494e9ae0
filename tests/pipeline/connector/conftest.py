"""Fixtures: the session with the connector, a history in a journal, a real server on loopback."""

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


class Place:
    """A tenant of a real server, and what leads to it."""

    def __init__(self, server: RealServer, tenant: str) -> None:
        settings = server.settings(tenant)
        assert settings.token is not None
        self.server, self.tenant, self.url, self.token = server, tenant, settings.url, settings.token
        self.client = Client(settings=settings)

    def options(self, **more: Any) -> dict[str, Any]:
        """Return the connector's options that lead here."""
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
    """Return the session that knows the format."""
    register(spark)
    return spark


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> DirectoryTarget:
    """Return a journal of two shards that nobody changes."""
    target = DirectoryTarget(tmp_path_factory.mktemp("journal"))
    write_history(target, rounds=60)
    write_history(target, rounds=40, seed=2, shard="1")
    return target


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Serve on loopback."""
    started = RealServer(tmp_path_factory.mktemp("server") / "data")
    started.start()
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def place(server: RealServer) -> Iterator[Place]:
    """Return a tenant that is administered by who writes."""
    found = Place(server, "acme")
    yield found
    found.client.close()


def read_journal(spark: SparkSession, target: DirectoryTarget | Path, **options: Any) -> DataFrame:
    """Return a journal as the connector reads it."""
    path = target.path if isinstance(target, DirectoryTarget) else target
    return spark.read.format("tenantq").option("journal", str(path)).options(**options).load()
