"""Fleets of named tenants: those that refuse are skipped, and the others are served."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tenantq.errors import Forbidden, Unauthenticated
from tenantq.worker import Worker
from tests.unit.worker.conftest import soon

if TYPE_CHECKING:
    from tenantq.client import Client
    from tenantq.testing import FakeServer
    from tenantq.wire.access import CreatedKey

NAMES = ("acme", "bolt")


@pytest.fixture
def key(client: Client) -> CreatedKey:
    """Return a key that may consume in two tenants and belongs to a third."""
    client.tenant("home").configure()
    key = client.tenant("home").create_key("worker", role="consumer")
    for name in NAMES:
        client.tenant(name).configure()
        client.tenant(name).queue("mail").configure()
        client.tenant(name).grant(f"key:{key.key_id}", role="consumer")
    return key


def serving(server: FakeServer, key: CreatedKey, *tenants: str) -> tuple[Worker, list[tuple[str, str]]]:
    """Return a worker for tenants and a list of what it processed."""
    worker = Worker(server.settings(token=key.token), fleet=True, tenants=tenants, wait_ms=100)
    done: list[tuple[str, str]] = []
    worker.task("mail")(lambda message: done.append((message.tenant, message.text)))
    return worker, done


async def test_a_tenant_that_revokes_its_grant_does_not_affect_the_others(
    server: FakeServer,
    client: Client,
    key: CreatedKey,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The loss and the return are logged once each, and messages added meanwhile are processed."""
    monkeypatch.setattr("tenantq.worker.poller.RECHECK_MS", 20)
    worker, done = serving(server, key, *NAMES)
    task = asyncio.create_task(worker.serve())
    client.tenant("bolt").queue("mail").add("1")
    await soon(lambda: done == [("bolt", "1")])
    client.tenant("bolt").revoke_grant(f"key:{key.key_id}")
    await soon(lambda: "skipping tenant bolt" in caplog.text)
    client.tenant("acme").queue("mail").add("2")
    await soon(lambda: ("acme", "2") in done)
    client.tenant("bolt").queue("mail").add("3")
    await asyncio.sleep(0.1)  # a few attempts
    assert len(done) == 2
    client.tenant("bolt").grant(f"key:{key.key_id}", role="consumer")
    await soon(lambda: ("bolt", "3") in done)
    worker.stop()
    assert await task
    told = [record for record in caplog.records if "tenant bolt" in record.message]
    assert [("skipping" in one.message, "polled again" in one.message) for one in told] == [
        (True, False),
        (False, True),
    ]
    assert {one.__dict__["tenant"] for one in told} == {"bolt"}
    assert client.tenant("bolt").queue("mail").stats().nacked_total == 0


async def test_a_missing_tenant_is_retried_separately_from_the_others(
    server: FakeServer,
    client: Client,
    key: CreatedKey,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is served once it is created, also after another tenant was deleted."""
    monkeypatch.setattr("tenantq.worker.poller.RECHECK_MS", 20)
    worker = Worker(server.settings(), fleet=True, tenants=["acme", "late"], wait_ms=100)
    done: list[tuple[str, str]] = []
    worker.task("mail")(lambda message: done.append((message.tenant, message.text)))
    task = asyncio.create_task(worker.serve())
    client.tenant("acme").queue("mail").add("1")
    await soon(lambda: done == [("acme", "1")])
    client.tenant("acme").delete(confirm="acme", reason="no longer a customer")
    await soon(lambda: "skipping tenant acme" in caplog.text)
    assert "skipping tenant late" in caplog.text
    client.tenant("late").configure()
    client.tenant("late").queue("mail").add("2")
    await soon(lambda: ("late", "2") in done)
    worker.stop()
    assert await task


def test_a_burst_does_not_wait_for_tenants_that_refuse(server: FakeServer, client: Client, key: CreatedKey) -> None:
    """It processes the others. A key that may poll no tenant is an error."""
    worker, done = serving(server, key, "acme", "foreign")
    client.tenant("acme").queue("mail").add("1")
    assert worker.run(burst=True)
    assert done == [("acme", "1")]
    nowhere, _ = serving(server, key, "foreign", "strange")
    with pytest.raises(Forbidden):
        nowhere.run(burst=True)


async def test_an_expired_credential_ends_the_worker_while_all_tenants_are_skipped(
    server: FakeServer,
    client: Client,
    key: CreatedKey,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As it does while a tenant is served."""
    monkeypatch.setattr("tenantq.worker.poller.RECHECK_MS", 20)
    worker, done = serving(server, key, "acme")
    client.tenant("acme").queue("mail").add("1")
    task = asyncio.create_task(worker.serve())
    await soon(lambda: done == [("acme", "1")])
    client.tenant("acme").revoke_grant(f"key:{key.key_id}")
    await soon(lambda: "skipping tenant acme" in caplog.text)
    client.tenant("home").revoke_key(key.key_id)
    async with asyncio.timeout(20):
        with pytest.raises(Unauthenticated):
            await task
