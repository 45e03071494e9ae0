"""The registry of workers: who polls which queue, since when, and with which version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from tenantq.errors import Forbidden, NotFound
from tenantq.gates import worker_registry
from tests.contract.gates.test_metrics import queue_label, scraped

if TYPE_CHECKING:
    from tests.contract.gates.house import House


async def test_workers_are_listed_from_their_first_poll_until_they_rest(house: House) -> None:
    """By the name in their user agent, or else by the consumer of the poll or the address."""
    await house.tenant("acme")
    call, key_id = await house.key_and_id("acme")
    named = msgspec.structs.replace(call, user_agent="tenantq-python/1.2.3 worker/mailer-7")
    await house.add(call, "mail", "x")
    started = house.clock.wall_ms()
    await house.take(named, "mail")
    await house.take(call, "mail", consumer="billing")
    await house.pass_time(30_000)
    await house.take(named, "mail")
    seen = {one.worker: one for one in await house.service.queues.workers(call, None)}
    assert set(seen) == {"mailer-7", "billing"}
    worker = seen["mailer-7"]
    assert (worker.queue, worker.principal, worker.remote) == ("mail", f"key:{key_id}", "10.1.2.3")
    assert (worker.version, worker.since, worker.last_seen) == ("tenantq-python/1.2.3", started, started + 30_000)
    assert (await scraped(house))["tenantq_queue_workers", queue_label("acme", "mail")] == 2
    await house.pass_time(45_000)
    assert [one.worker for one in await house.service.queues.workers(call, None)] == ["mailer-7"]
    await house.pass_time(60_000)
    assert await house.service.queues.workers(call, None) == []


async def test_workers_are_shown_to_those_who_may_list_their_queue(house: House) -> None:
    """And never to another tenant."""
    for name in ("acme", "bolt"):
        await house.tenant(name)
    call, thief = await house.key("acme"), await house.key("bolt")
    for queue in ("mail", "web"):
        await house.add(call, queue, "x")
        await house.take(call, queue)
    narrow = await house.key("acme", "viewer", queues=("m*",))
    assert [one.queue for one in await house.service.queues.workers(narrow, None)] == ["mail"]
    with pytest.raises((Forbidden, NotFound)):
        await house.service.queues.workers(thief, "acme")
    assert await house.service.queues.workers(thief, None) == []


async def test_workers_of_a_fleet_belong_to_the_queues_that_gave_them_messages(house: House) -> None:
    """A fleet over all tenants polls every queue of a name, so its polls alone say little."""
    for name in ("acme", "bolt"):
        await house.tenant(name)
    await house.add(await house.key("acme"), "mail", "x")
    await house.service.fleet.poll(house.admin, "mail", max=5)
    assert [one.queue for one in await house.service.queues.workers(house.admin, "acme")] == ["mail"]
    assert await house.service.queues.workers(house.admin, "bolt") == []


async def test_the_registry_is_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that polled least recently is dropped first."""
    monkeypatch.setattr(worker_registry, "WORKERS_MAX", 3)
    await house.tenant("acme")
    call = await house.key("acme")
    await house.add(call, "mail", "x")
    for name in ("a", "b", "c", "a", "d"):
        await house.take(call, "mail", consumer=name)
    assert [one.worker for one in await house.service.queues.workers(call, None)] == ["a", "c", "d"]
