"""The registry of workers: who polls which queue, since when, and with which version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tenantq.errors import Forbidden, NotFound
from tenantq.gates import worker_registry
from tests.contract.gates.test_metrics import queue_label, scraped

if TYPE_CHECKING:
    from tests.contract.gates.harness import ServiceHarness


async def test_workers_are_listed_from_their_first_poll_until_idle(harness: ServiceHarness) -> None:
    """They are identified by their user agent, or else by consumer name or address."""
    await harness.tenant("acme")
    call, key_id = await harness.key_and_id("acme")
    named = msgspec.structs.replace(call, user_agent="tenantq-python/1.2.3 worker/mailer-7")
    await harness.add(call, "mail", "x")
    started = harness.clock.wall_ms()
    await harness.take(named, "mail")
    await harness.take(call, "mail", consumer="billing")
    await harness.pass_time(30_000)
    await harness.take(named, "mail")
    seen = {one.worker: one for one in await harness.service.queues.workers(call, None)}
    assert set(seen) == {"mailer-7", "billing"}
    worker = seen["mailer-7"]
    assert (worker.queue, worker.principal, worker.remote) == ("mail", f"key:{key_id}", "10.1.2.3")
    assert (worker.version, worker.since, worker.last_seen) == ("tenantq-python/1.2.3", started, started + 30_000)
    assert (await scraped(harness))["tenantq_queue_workers", queue_label("acme", "mail")] == 2
    await harness.pass_time(45_000)
    assert [one.worker for one in await harness.service.queues.workers(call, None)] == ["mailer-7"]
    await harness.pass_time(60_000)
    assert await harness.service.queues.workers(call, None) == []


async def test_workers_are_visible_to_those_who_may_list_their_queue(harness: ServiceHarness) -> None:
    """They are never visible to another tenant."""
    for name in ("acme", "bolt"):
        await harness.tenant(name)
    call, thief = await harness.key("acme"), await harness.key("bolt")
    for queue in ("mail", "web"):
        await harness.add(call, queue, "x")
        await harness.take(call, queue)
    narrow = await harness.key("acme", "viewer", queues=("m*",))
    assert [one.queue for one in await harness.service.queues.workers(narrow, None)] == ["mail"]
    with pytest.raises((Forbidden, NotFound)):
        await harness.service.queues.workers(thief, "acme")
    assert await harness.service.queues.workers(thief, None) == []


async def test_workers_of_a_fleet_belong_to_the_queues_that_gave_them_messages(harness: ServiceHarness) -> None:
    """A fleet over all tenants polls every queue of a name, so its polls alone say little."""
    for name in ("acme", "bolt"):
        await harness.tenant(name)
    await harness.add(await harness.key("acme"), "mail", "x")
    await harness.service.fleet.poll(harness.admin, "mail", max=5)
    assert [one.queue for one in await harness.service.queues.workers(harness.admin, "acme")] == ["mail"]
    assert await harness.service.queues.workers(harness.admin, "bolt") == []


async def test_worker_registry_is_limited(harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that polled least recently is dropped first."""
    monkeypatch.setattr(worker_registry, "WORKERS_MAX", 3)
    await harness.tenant("acme")
    call = await harness.key("acme")
    await harness.add(call, "mail", "x")
    for name in ("a", "b", "c", "a", "d"):
        await harness.take(call, "mail", consumer=name)
    assert [one.worker for one in await harness.service.queues.workers(call, None)] == ["a", "c", "d"]
