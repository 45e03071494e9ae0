"""A machine is known by its address towards the store, and by an ID of its network."""

from __future__ import annotations

import pytest

from tenantq.cluster import machine
from tenantq.cluster.machine import address_towards, machine_id
from tenantq.store.address import parse_store, store_hosts


@pytest.mark.parametrize(
    "store",
    [
        "redis://127.0.0.1:6379",
        "redis+cluster://localhost:1,[::1]:2",
        "unix:///run/redis.sock",
        "postgresql://tenantq@localhost/tenantq",
        "postgresql:///tenantq?host=/run/postgresql",
        "redis://no-such-host.invalid",
    ],
)
def test_address_towards_a_local_store_is_loopback(store: str) -> None:
    """Nobody else can use that store. The server reports an unknown host when it connects."""
    assert address_towards(store_hosts(parse_store(store))) == "127.0.0.1"


def test_address_towards_a_store_elsewhere_is_the_one_of_the_route(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first host that is not on this machine counts, and hosts without a route do not."""
    routes = {"127.0.0.1": "127.0.0.1", "10.0.0.1": None, "10.0.0.2": "10.0.0.9", "10.0.0.3": "10.1.0.9"}
    monkeypatch.setattr(machine, "_route", lambda _, place: routes[place[0]])
    nodes = store_hosts(parse_store("redis+cluster://127.0.0.1:1,10.0.0.1:1,10.0.0.2:1,10.0.0.3:1"))
    assert address_towards(nodes) == "10.0.0.9"


def test_processes_of_one_network_have_one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the facts of Linux, the host name decides."""
    assert machine_id() == machine_id()
    here = machine_id()
    monkeypatch.setattr(machine, "_BOOT_ID", machine._BOOT_ID / "missing")
    named = machine_id()
    assert named != here
    monkeypatch.setattr("socket.gethostname", lambda: "other")
    assert machine_id() not in {here, named}
