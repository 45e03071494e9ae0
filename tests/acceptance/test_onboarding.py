"""Sign-ups, templates and containment from the command line, on a server that allows them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.acceptance.command import serving
from tests.contract.shards.sharded import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.command import Served

RULES = [{"alert": "cross_tenant", "action": "suspend_key", "dry_run": False}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a running server that accepts sign-ups and suspends keys that try other tenants."""
    settings = {"TENANTQ_SIGNUPS__ENABLED": "true", "TENANTQ_CONTAINMENT": json.dumps(RULES)}
    with serving(tmp_path_factory.mktemp("served") / "data", **settings) as served:
        yield served


def test_sign_up_from_the_request_to_the_first_message(server: Served, tmp_path: Path) -> None:
    """The applicant needs no credential; the administrator sees the token once."""
    (tmp_path / "starter.toml").write_text('description = "E-mail"\n[queues.mail]\nmax_attempts = 5\n')
    server.ok("template", "create", "starter", tmp_path / "starter.toml", "--platform")
    asked = {"tenant": "newcomer", "contact": "ann@newcomer.example"}
    reply = httpx.post(f"{server.url}/v1/signups", json=asked, timeout=30)
    assert (reply.status_code, set(reply.json())) == (202, {"id"})
    [waiting] = server.ok("signup", "list", "--json").json["signups"]
    assert (waiting["id"], waiting["tenant"]) == (reply.json()["id"], "newcomer")
    token = server.ok("signup", "approve", waiting["id"], "--template", "starter", "--quiet").out.strip()
    server.ok("add", "mail", "hello", TENANTQ_TOKEN=token)
    assert server.ok("queue", "show", "mail", "--json", TENANTQ_TOKEN=token).json["config"]["max_attempts"] == 5
    assert server.call("signup", "approve", waiting["id"]).code == 3
    again = httpx.post(f"{server.url}/v1/signups", json=asked, timeout=30).json()["id"]
    assert server.call("signup", "approve", again).code == 7
    rejected = server.ok("signup", "reject", again, "--reason", "twice")
    assert rejected.out == "rejected the sign-up of ann@newcomer.example for tenant newcomer\n"


def test_a_template_is_created_shared_applied_and_deleted(server: Served, tmp_path: Path) -> None:
    """Others see it once it is shared."""
    for tenant in ("maker", "user"):
        server.ok("tenant", "create", tenant)
    (tmp_path / "mail.json").write_text('{"queues": {"mail": {"max_attempts": 2}}}')
    server.ok("template", "create", "mail", tmp_path / "mail.json", "--tenant", "maker")
    key = server.ok("key", "create", "admin", "--tenant", "user", "--role", "tenant-admin", "--quiet").out.strip()
    apply = ("template", "apply", "mail", "--owner", "maker", "--json")
    assert server.call(*apply, TENANTQ_TOKEN=key).code == 3
    shared = server.ok("template", "share", "mail", "user", "--tenant", "maker")
    assert shared.out == "template mail is shared with user\n"
    shown = server.ok("template", "show", "mail", "--json", TENANTQ_TOKEN=key).json
    assert (shown["owner"], shown["queues"]) == ("maker", {"mail": {"max_attempts": 2}})
    for options, outcome in ((("--dry-run",), "created"), ((), "created"), ((), "unchanged")):
        [found] = server.ok(*apply, *options, TENANTQ_TOKEN=key).json["results"]
        assert (found["queue"], found["outcome"]) == ("mail", outcome)
    assert server.ok(*apply[:-1], "--dry-run", TENANTQ_TOKEN=key).out.endswith("dry run: nothing was changed\n")
    server.ok("template", "delete", "mail", "--tenant", "maker")
    assert server.ok("template", "list", "--tenant", "maker", "--json").json["templates"] == []
    (tmp_path / "wrong.toml").write_text("queue = 3")
    assert server.call("template", "create", "wrong", tmp_path / "wrong.toml", "--tenant", "maker").code == 2


def test_a_contained_key_is_listed_and_released(server: Served) -> None:
    """Its commands exit with the code for forbidden calls, and the list of keys says why."""
    server.ok("tenant", "create", "victim")
    server.ok("tenant", "create", "suspect")
    made = server.ok("key", "create", "curious", "--tenant", "suspect", "--role", "producer", "--json").json
    own = {"Authorization": f"Bearer {made['token']}"}
    for _ in range(6):
        reply = httpx.get(f"{server.url}/v1/tenants/victim/usage", headers=own, timeout=30)
        assert reply.status_code == 403
    [found] = until(lambda: server.ok("containment", "list", "--json").json["containments"])
    assert (found["principal"], found["tenant"], found["dry_run"]) == (f"key:{made['key_id']}", "suspect", False)
    refused = server.call("add", "mail", "hello", TENANTQ_TOKEN=made["token"])
    assert refused.code == 4
    assert f"API key {made['key_id']} is suspended until" in refused.err
    assert "suspended" in server.ok("key", "list", "--tenant", "suspect").out
    released = server.ok("containment", "release", found["id"])
    assert released.out == f"released: suspend_key key:{made['key_id']}\n"
    server.ok("add", "mail", "hello", TENANTQ_TOKEN=made["token"])
    assert server.call("containment", "release", found["id"]).code == 3
