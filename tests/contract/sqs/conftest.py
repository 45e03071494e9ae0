"""Fixtures: one server for all tests of a module, and a tenant with a client for each test."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.sqs.sqs_server import SqsServer

if TYPE_CHECKING:
    from collections.abc import Iterator

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServer]:
    """Start a server."""
    with SqsServer(tmp_path_factory.mktemp("sqs")) as running:
        yield running


@pytest.fixture
def tenant(server: SqsServer) -> str:
    """Create the test's own tenant."""
    name = f"tenant-{next(_numbers)}"
    server.tenant(name)
    return name


@pytest.fixture
def sqs(server: SqsServer, tenant: str) -> Iterator[Any]:
    """Return a boto3 client of the tenant's administrator."""
    client = server.client(tenant)
    yield client
    client.close()


@pytest.fixture
def queue(sqs: Any) -> str:
    """Create a queue, and return its URL."""
    url: str = sqs.create_queue(QueueName="work")["QueueUrl"]
    return url
