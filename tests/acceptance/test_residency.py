"""Residency over a real server: a tenant's contents are served only in its allowed regions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq import Client
from tenantq.errors import Conflict, Invalid, TenantqError
from tests.acceptance.command import ADMIN_TOKEN, serving

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tenantq.client import Tenant

REASON = "because a test says so"
CONTENTS: dict[str, Callable[[Tenant, str], object]] = {
    "add": lambda tenant, _: tenant.queue("mail").add("y"),
    "poll": lambda tenant, _: tenant.queue("mail").poll(),
    "peek": lambda tenant, _: tenant.queue("mail").peek(),
    "get": lambda tenant, message: tenant.queue("mail").get(message),
    "result": lambda tenant, message: tenant.queue("mail").result(message),
    "trace": lambda tenant, message: tenant.queue("mail").trace(message),
    "snapshot": lambda tenant, _: tenant.queue("mail").open_snapshot(),
    "export": lambda tenant, _: tenant.export(lambda _: None),
    "digest": lambda tenant, _: tenant.queue("mail").digest(),
    "redrive": lambda tenant, _: tenant.queue("mail").redrive(),
}


def test_contents_are_not_served_from_another_region(tmp_path: Path) -> None:
    """Calls that touch contents and backups are refused; administration works. The right region restores access."""
    data = tmp_path / "data"
    with serving(data, TENANTQ_SHARD__REGION="eu") as server, Client(server.url, ADMIN_TOKEN) as client:
        acme = client.tenant("acme")
        acme.configure(regions=["eu"])
        id = acme.queue("mail").add("x").id
        proof = server.ok("topology", "prove", "acme", "--json").json
        assert proof["allowed"]
        assert {one["what"] for one in proof["places"]} == {"messages", "journal segments", "backups"}
    with serving(data, TENANTQ_SHARD__REGION="us") as server, Client(server.url, ADMIN_TOKEN, retries=0) as client:
        acme = client.tenant("acme")
        for call in CONTENTS.values():
            with pytest.raises(Conflict, match="allows the regions eu"):
                call(acme, id)
        assert server.call("backup", "create").code == 7
        assert client.tenant("other").configure().name == "other"
        assert acme.get().config["regions"] == ["eu"]
        done = server.call("topology", "prove", "acme")
        assert (done.code, "no" in done.out) == (7, True)
    with serving(data, TENANTQ_SHARD__REGION="eu") as server, Client(server.url, ADMIN_TOKEN) as client:
        assert client.tenant("acme").queue("mail").poll()[0].body == b"x"


def test_segments_and_backups_in_another_region_refuse_the_tenant(tmp_path: Path) -> None:
    """A tenant that does not allow their region cannot be created."""
    abroad = {"TENANTQ_SHARD__REGION": "eu", "TENANTQ_EXPORT__REGION": "us"}
    with serving(tmp_path / "data", **abroad) as server, Client(server.url, ADMIN_TOKEN) as client:
        with pytest.raises(Invalid, match="regions: eu do not include us of the journal segments"):
            client.tenant("acme").configure(regions=["eu"])
        with pytest.raises(TenantqError):
            client.tenant("acme").get()
        client.tenant("acme").configure(regions=["eu", "us"])
        assert server.ok("topology", "prove", "acme", "--json").json["allowed"]
