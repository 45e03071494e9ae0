"""Tenants, queues, keys and grants from the command line: what is printed, and what scripts read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command import SECONDS_MAX

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.command import Served

TENANT_KEYS = {"figures", "hold", "suspension", "name", "id", "status", "version", "config"}
QUEUE_KEYS = {
    "id", "name", "tenant", "status", "suspension", "config", "ready", "delayed", "in_flight", "blocked", "dead", "bytes", "oldest_age_ms",
    "added_total", "added_bytes_total", "delivered_total", "acked_total", "nacked_total", "lease_expired_total",
    "dead_total", "expired_total", "removed_total", "healed_total",
}  # fmt: skip
WHY = ("--yes", "--reason", "not needed any more")


# ---- tenants ----


def test_tenant_lifecycle(server: Served) -> None:
    """Each step reports what it did, and --json shows the tenant."""
    made = server.ok("tenant", "create", "acme", "--weight", 3, "--set", "quotas.backlog=10", "--json")
    assert set(made.json) == TENANT_KEYS
    assert (made.json["config"]["weight"], made.json["config"]["quotas"]["backlog"]) == (3, 10)
    changed = server.ok("tenant", "configure", "acme", "--set", "quotas.stored_bytes=2MiB", "--json").json
    assert changed["config"]["quotas"]["stored_bytes"] == 2 << 20
    assert changed["config"]["quotas"]["backlog"] == 10
    none = server.ok("tenant", "configure", "acme", "--set", "quotas.backlog=none", "--json").json
    assert none["config"]["quotas"]["backlog"] is None
    assert "\nweight\t3\n" in server.ok("tenant", "show", "acme").out
    assert server.ok("tenant", "show", "acme", "--json").json == none
    assert server.ok("tenant", "suspend", "acme", "--reason", "unpaid").out == "suspended tenant acme\n"
    denied = server.call("add", "mail", "hello", "--tenant", "acme")
    assert (denied.code, denied.out) == (4, "")
    assert "suspended" in denied.err
    assert server.ok("tenant", "resume", "acme", "--json").json["status"] == "active"
    listed = server.ok("tenant", "list", "--json").json["tenants"]
    assert {tenant["name"] for tenant in listed} >= {"acme", "default"}
    assert "acme\tactive\t3\tstandard\t" in server.ok("tenant", "list").out
    why = ("--reason", "case 4711, letter of 3 March")
    assert server.ok("tenant", "hold", "acme", *why).out == "tenant acme is under legal hold\n"
    assert "acme\tactive, on hold\t3\t" in server.ok("tenant", "list").out
    held = server.call("tenant", "delete", "acme", *WHY)
    assert (held.code, "legal_hold" in held.err) == (7, True)
    assert server.ok("tenant", "release", "acme", *why).out == "released tenant acme from legal hold\n"
    deleted = server.ok("tenant", "delete", "acme", *WHY).out
    assert deleted.startswith("deleted tenant acme; certificate ")
    id = deleted.split()[4].rstrip(":")
    assert server.ok("tenant", "erasures", id).json["tenant"] == "acme"
    assert f"{id}\tacme\t" in server.ok("tenant", "erasures").out
    assert server.call("tenant", "erasures", "none").code == 3
    assert server.call("tenant", "show", "acme").code == 3


def test_create_never_changes_and_configure_never_creates(server: Served) -> None:
    """An existing or unknown name is an error."""
    server.ok("tenant", "create", "made")
    again = server.call("tenant", "create", "made", "--weight", 5)
    assert (again.code, again.out) == (7, "")
    assert again.err.startswith("tenantq: tenant made already exists; change it with 'tenantq tenant configure'")
    assert again.err.endswith("[conflict]\n")
    assert server.ok("tenant", "show", "made", "--json").json["config"]["weight"] == 1
    assert server.call("tenant", "configure", "missing", "--weight", 5).code == 3
    assert server.call("tenant", "show", "missing").code == 3
    server.ok("queue", "create", "made")
    assert server.call("queue", "create", "made").code == 7
    assert server.call("queue", "configure", "missing", "--lease", "1m").code == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("tenant", "configure", "default"), "Give at least one setting to change."),
        (("tenant", "configure", "default", "--reason", "why"), "Give at least one setting to change."),
        (("tenant", "configure", "default", "--set", "weight"), "'weight' is not NAME=VALUE"),
        (("tenant", "configure", "default", "--set", "colour=red"), "colour: unknown field"),
        (("tenant", "configure", "default", "--weight", "0"), "weight: out of range (0, allowed: 1 to"),
        (("tenant", "create", "NO"), "tenant: invalid value (allowed: 3 to 32 characters"),
        (("queue", "create", "no/slash"), "queue: invalid value (allowed: 1 to 80 characters"),
        (("queue", "create", "bad", "--lease", "13h"), "lease_ms: out of range (46800000, allowed: 1 to"),
        (("queue", "create", "bad", "--lease", "soon"), "'soon' is not a duration such as 30s"),
        (("key", "create", "nothing"), "Give --role or --action."),
        (("key", "create", "bad", "--role", "king"), "'king' is not one of"),
        (("key", "create", "bad", "--action", "fly"), "actions[0]: invalid value"),
        (("key", "create", "bad", "--role", "viewer", "--expires", "never"), "'never' is not a time such as"),
        (("tenant", "delete", "default"), "Give --yes and --reason"),
        (("tenant", "delete", "default", "--yes"), "--yes requires --reason"),
    ],
)
def test_invalid_argument_is_exit_code_2_and_named(server: Served, arguments: tuple[str, ...], text: str) -> None:
    """Whether the client or the server finds it, there is one line on stderr and nothing on stdout."""
    done = server.call(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
    assert text in done.err


# ---- queues ----


def test_queue_lifecycle(server: Served) -> None:
    """Each step reports what it did, and --json shows the queue."""
    made = server.ok("queue", "create", "mail", "--lease", "5m", "--max-attempts", 3, "--ttl", "1d", "--json")
    assert set(made.json) == QUEUE_KEYS
    config = made.json["config"]
    assert (config["lease_ms"], config["max_attempts"], config["ttl_ms"]) == (300_000, 3, 86_400_000)
    options = ("--dead-letter", "letters", "--set", "limits.read.ops_per_sec=50", "--set", "backoff_base_ms=2s")
    config = server.ok("queue", "configure", "mail", *options, "--json").json["config"]
    assert (config["dead_letter"], config["limits"]["read"]["ops_per_sec"]) == ("letters", 50)
    assert (config["backoff_base_ms"], config["lease_ms"]) == (2_000, 300_000)
    assert server.ok("queue", "pause", "mail").out == "paused queue mail\n"
    server.ok("add", "mail", "hello")
    assert server.ok("poll", "mail").out == ""
    assert server.ok("queue", "show", "mail", "--json").json["status"] == "paused"
    assert server.ok("queue", "resume", "mail", "--json").json["status"] == "active"
    shown = server.ok("queue", "show", "mail").out
    assert "ready\t1\n" in shown
    assert "\nlease_ms\t300000\n" in shown
    assert "mail\tactive\t1\t0\t0\t0\t5\t" in server.ok("queue", "list").out
    assert {queue["name"] for queue in server.ok("queue", "list", "--json").json["queues"]} >= {"mail"}
    assert server.ok("queue", "purge", "mail", *WHY).out == "purged 1 message of queue mail\n"
    assert server.ok("queue", "purge", "mail", *WHY, "--json").json == {"name": "mail", "purged": 0}
    assert server.ok("queue", "delete", "mail", *WHY).out == "deleting queue mail\n"
    assert server.call("queue", "show", "mail").code == 3


def test_queue_deletion_waits_for_leases(server: Served) -> None:
    """The output says so, new messages are refused meanwhile, and --force does not wait."""
    for queue in ("waits", "forced"):
        server.ok("add", queue, "hello")
        receipt = server.ok("poll", queue, "--json").json["receipt"]
        force = ("--force",) if queue == "forced" else ()
        done = server.ok("queue", "delete", queue, *WHY, *force)
        if force:
            assert done.out == "deleting queue forced\n"
        else:
            assert done.out == "deleting queue waits when 1 leases have settled\n"
            assert server.call("add", queue, "more").code == 7
            server.ok("ack", queue, receipt)
        assert server.call("queue", "show", queue).code == 3


def test_peek_shows_messages_without_leasing(server: Served) -> None:
    """They appear in delivery order, one page at a time."""
    for number in range(3):
        server.ok("add", "seen", f"body {number}", "--attribute", "n=1")
    page = server.call("queue", "peek", "seen", "--max", 2, "--json").json
    assert [message["body"] for message in page["messages"]] == ["body 0", "body 1"]
    assert page["messages"][0]["attributes"] == {"n": "1"}
    rest = server.ok("queue", "peek", "seen", "--cursor", page["cursor"], "--json").json
    assert [message["body"] for message in rest["messages"]] == ["body 2"]
    first = server.call("queue", "peek", "seen", "--max", 1)
    assert first.out.splitlines()[1].endswith("body 0")
    assert first.err.startswith("more: --cursor ")
    assert server.ok("queue", "show", "seen", "--json").json["in_flight"] == 0


def test_tenant_option_selects_another_tenants_queue(server: Served) -> None:
    """--tenant and TENANTQ_TENANT name it; the default is the credential's own tenant."""
    server.ok("tenant", "create", "far-away")
    server.ok("add", "mail2", "hello", "--tenant", "far-away")
    assert server.call("queue", "show", "mail2").code == 3
    assert server.ok("queue", "show", "mail2", TENANTQ_TENANT="far-away").out
    assert [queue["name"] for queue in server.ok("queue", "list", "--tenant", "far-away", "--json").json["queues"]] == [
        "mail2"
    ]


# ---- keys and grants ----


def test_key_lifecycle(server: Served) -> None:
    """Its token is shown once, allows what was granted, and stops working when revoked."""
    server.ok("tenant", "create", "keyed")
    options = ("--tenant", "keyed", "--role", "producer", "--queue", "mail*", "--expires", "30d")
    shown = server.ok("key", "create", "mailer", *options)
    assert "Store it now" in shown.out
    made = server.ok("key", "create", "mailer", *options, "--json").json
    assert set(made) == {"key_id", "secret", "token"}
    token = server.ok("key", "create", "mailer", *options, "--quiet").out.strip()
    server.ok("add", "mail", "hello", TENANTQ_TOKEN=token)
    assert server.call("add", "other", "hello", TENANTQ_TOKEN=token).code == 4
    assert server.call("poll", "mail", TENANTQ_TOKEN=token).code == 4
    keys = server.ok("key", "list", "--tenant", "keyed", "--json").json["keys"]
    assert len(keys) == 3
    assert set(keys[0]) == {
        "key_id", "name", "role", "actions", "queues", "expires_at", "created_at", "created_by", "revoked_at", "last_used_at",
        "suspended_until",
    }  # fmt: skip
    listed = server.ok("key", "list", "--tenant", "keyed").out
    assert "mailer\tproducer\tmail*\t" in listed
    assert token not in listed
    key_id = token.split("_")[1]
    assert server.ok("key", "revoke", key_id, "--tenant", "keyed").out == f"revoked key {key_id}\n"
    assert server.call("add", "mail", "hello", TENANTQ_TOKEN=token).code == 4
    assert server.call("key", "revoke", "nobody", "--tenant", "keyed").code == 3


def test_expired_key_is_shown_as_expired(server: Served) -> None:
    """A key that would expire at once is not created."""
    server.ok("tenant", "create", "brief")
    past = server.call("key", "create", "late", "--tenant", "brief", "--role", "viewer", "--expires", "2020-01-31")
    assert (past.code, "'2020-01-31' is in the past" in past.err) == (2, True)
    server.ok("key", "create", "short", "--tenant", "brief", "--role", "viewer", "--expires", "1s", "--quiet")
    ends = time.monotonic() + SECONDS_MAX
    while "\tvalid\n" in server.ok("key", "list", "--tenant", "brief").out:
        assert time.monotonic() < ends
    assert "\texpired\n" in server.ok("key", "list", "--tenant", "brief").out


def test_default_tenant_is_that_of_the_credential(server: Served) -> None:
    """An administrator of a tenant need not name it."""
    server.ok("tenant", "create", "mine")
    create = ("key", "create", "boss", "--tenant", "mine", "--role", "tenant-admin", "--quiet")
    token = server.ok(*create).out.strip()
    server.ok("add", "mail", "hello", TENANTQ_TOKEN=token)
    assert server.ok("usage", "--json", TENANTQ_TOKEN=token).json["tenant"] == "mine"
    assert [key["name"] for key in server.ok("key", "list", "--json", TENANTQ_TOKEN=token).json["keys"]] == ["boss"]
    assert {row["tenant"] for row in server.ok("audit", "--json", TENANTQ_TOKEN=token).json_lines} == {"mine"}
    assert server.call("tenant", "list", TENANTQ_TOKEN=token).code == 4


def test_grant_lifecycle(server: Served) -> None:
    """A key of one tenant works in another as long as it is granted."""
    for name in ("home", "abroad"):
        server.ok("tenant", "create", name)
    token = server.ok("key", "create", "w", "--tenant", "home", "--role", "consumer", "--quiet").out.strip()
    principal = f"key:{token.split('_')[1]}"
    server.ok("add", "mail", "hello", "--tenant", "abroad")
    poll = ("poll", "mail", "--tenant", "abroad", "--body")
    assert server.call(*poll, TENANTQ_TOKEN=token).code == 4
    options = ("--tenant", "abroad", "--role", "consumer", "--queue", "mail")
    assert server.ok("grant", "put", principal, *options).out == f"granted to {principal}\n"
    assert server.ok(*poll, TENANTQ_TOKEN=token).out == "hello\n"
    (grant,) = server.ok("grant", "list", "--tenant", "abroad", "--json").json["grants"]
    expected = {"principal": principal, "role": "consumer", "actions": [], "queues": ["mail"], "expires_at": None}
    assert grant.pop("reviewed_at") > 0
    assert grant == expected
    assert server.ok("grant", "put", principal, *options, "--json").json == expected
    assert f"{principal}\tconsumer\tmail\t-\t20" in server.ok("grant", "list", "--tenant", "abroad").out
    server.ok("grant", "delete", principal, "--tenant", "abroad")
    assert server.call(*poll, TENANTQ_TOKEN=token).code == 4
    assert server.ok("grant", "list", "--tenant", "abroad").out == ""


# ---- usage and audit ----


def test_usage_shows_quotas_and_their_use(server: Served) -> None:
    """An exhausted quota is exit code 5 for further adds."""
    server.ok("tenant", "create", "small", "--set", "quotas.backlog=2")
    for _ in range(2):
        server.ok("add", "mail", "hello", "--tenant", "small")
    usage = server.ok("usage", "--tenant", "small", "--json").json
    assert (usage["tenant"], usage["state"]) == ("small", "critical")
    assert usage["quotas"]["backlog"] == {
        "limit": 2, "used": 2, "remaining": 0, "state": "critical", "resets_at": None,
    }  # fmt: skip
    assert "backlog\t2\t2\t0\tcritical\t-\n" in server.ok("usage", "--tenant", "small").out
    full = server.call("add", "mail", "hello", "--tenant", "small")
    assert (full.code, full.out) == (5, "")
    assert "quota_exceeded" in full.err


def test_audit_trail_page_by_page(server: Served) -> None:
    """The oldest rows come first, filters work, and the cursor of the next page is on stderr."""
    server.ok("tenant", "create", "watched")
    for number in range(5):
        server.ok("add", "mail", number, "--tenant", "watched")
    adds = ("audit", "--tenant", "watched", "--action", "add")
    rows = server.ok(*adds, "--json").json_lines
    assert len(rows) == 5
    assert set(rows[0]) >= {
        "shard", "seq", "n", "ts", "tenant", "queue", "op", "message_id", "principal", "bytes", "priority", "attempt",
        "wait_ms", "process_ms", "outcome", "error_code", "remote", "request_id", "details",
    }  # fmt: skip
    first = server.call(*adds, "--limit", 2, "--json")
    assert first.json_lines == rows[:2]
    cursor = first.err.removeprefix("more: --cursor ").strip()
    assert server.ok(*adds, "--cursor", cursor, "--all", "--json").json_lines == rows[2:]
    assert server.ok(*adds, "--start", "1h", "--end", "0ms").out.count("\tadd\tmail\tok\t") == 5
    assert server.ok(*adds, "--start", "2000-01-01", "--end", "2001-01-01T00:00:00Z").out == ""
    assert server.ok(*adds, "--message", rows[0]["message_id"], "--json").json_lines == rows[:1]
    assert server.ok("audit", "--tenant", "watched", "--result", "DENIED", "--all").out == ""


def test_audit_options_before_a_subcommand_are_refused(server: Served, tmp_path: Path) -> None:
    """They belong to the list, so they are wrong usage before another command, and nothing is written."""
    file = tmp_path / "audit.csv"
    done = server.call("audit", "--tenant", "jj", "export", "--format", "csv", "--out", file)
    assert (done.code, file.exists()) == (2, False)
    assert server.call("audit", "--newest", "list").code == 2
    given = ("--limit", 1, "--newest", "--json", "--action", "create_tenant")  # each query adds its own row
    assert server.call("audit", *given) == server.call("audit", "list", *given)


def test_installed_command_prints_the_same(server: Served) -> None:
    """The command runs once as a real process."""
    done = server.run("tenant", "list", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == server.ok("tenant", "list", "--json").out


def test_audit_trail_as_a_file(server: Served, tmp_path: Path) -> None:
    """Every format is written completely or not at all, and formulas stay text."""
    server.ok("tenant", "create", "filed")
    token = server.ok("key", "create", "=cmd", "--tenant", "filed", "--role", "tenant-admin", "--json").json["token"]
    for number in range(3):
        server.ok("add", "mail", number, TENANTQ_TOKEN=token)
    ops = [word for op in ("create_tenant", "create_key", "create_queue", "add") for word in ("--action", op)]
    filed = ("--tenant", "filed", *ops)  # each query adds its own row
    for kind in ("csv", "jsonl", "parquet"):
        file = tmp_path / f"audit.{kind}"
        done = server.ok("audit", "export", *filed, "--format", kind, "--out", file, "--json")
        assert done.json == {"file": str(file), "rows": 6, "format": kind, "incomplete": False}
        assert file.stat().st_size > 100
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert server.ok("audit", "list", *filed, "--json").out.splitlines() == lines
    assert server.ok("audit", *filed, "--newest", "--json").out.splitlines() == lines[::-1]
    both = server.ok("audit", "list", "--tenant", "filed", "--action", "add", "--action", "create_key", "--json")
    assert [row["op"] for row in both.json_lines] == ["create_key", "add", "add", "add"]
    assert server.ok("audit", "export", *filed, "--format", "jsonl", "--out", "-").out.splitlines() == lines
    missing = tmp_path / "nowhere" / "audit.csv"
    assert server.call("audit", "export", "--tenant", "filed", "--format", "csv", "--out", missing).code == 2
    assert not missing.parent.exists()


def test_platform_audit_trail_and_keys(server: Served) -> None:
    """Only administrators may use them; a platform key is created, listed and revoked."""
    made = server.ok("key", "create", "scraper", "--platform", "--action", "metrics", "--json").json
    assert f"{made['key_id']}\tscraper\tmetrics\t*\t-\t-\tvalid\n" in server.ok("key", "list", "--platform").out
    server.ok("key", "revoke", made["key_id"], "--platform")
    assert f"{made['key_id']}\tscraper\tmetrics\t*\t-\t-\trevoked\n" in server.ok("key", "list", "--platform").out
    rows = server.ok("audit", "list", "--platform", "--newest", "--action", "revoke_key", "--json").json_lines
    assert made["key_id"] in rows[0]["details"]
    assert rows[0]["tenant"] == ""
    assert "\tcreate_tenant\t" in server.ok("audit", "list", "--platform", "--all").out
    token = server.ok("key", "create", "k", "--tenant", "default", "--role", "tenant-admin", "--json").json["token"]
    assert server.call("audit", "list", "--platform", TENANTQ_TOKEN=token).code == 4
    assert server.call("key", "list", "--platform", "--tenant", "default").code == 2


def test_tenant_gets_the_values_of_a_plan(server: Served) -> None:
    """The default plan limits it, another plan replaces these values, and a mistyped name lists the known plans."""
    assert "standard (default)\t1\t10,000,000\t10.0 GiB\tno limit\tno\t" in server.ok("tenant", "plans").out
    assert server.ok("tenant", "create", "planned", "--json").json["config"]["quotas"]["backlog"] == 10_000_000
    changed = server.ok("tenant", "configure", "planned", "--plan", "unlimited", "--json").json["config"]
    assert (changed["plan"], changed["quotas"]["backlog"]) == ("unlimited", None)
    refused = server.call("tenant", "configure", "planned", "--plan", "gold")
    assert refused.code != 0
    assert "plan: unknown plan ('gold', allowed: standard, unlimited)" in refused.err


def test_configure_lists_every_setting_that_changed(server: Served) -> None:
    """Each is shown with its old and new value, including those that come with a plan."""
    server.ok("tenant", "create", "grown", "--set", "quotas.backlog=50000")
    changed = server.ok("tenant", "configure", "grown", "--weight", 2, "--set", "quotas.backlog=100000").out
    assert changed == "changed tenant grown\nweight 1 → 2\nquotas.backlog 50,000 → 100,000\n"
    same = server.ok("tenant", "configure", "grown", "--weight", 2).out
    assert same == "tenant grown already has these settings\n"
    shown = server.ok("tenant", "configure", "grown", "--plan", "unlimited").out
    assert "plan standard → unlimited\n" in shown
    assert "quotas.backlog 100,000 → none\n" in shown
    server.ok("queue", "create", "grown")
    assert (
        server.ok("queue", "configure", "grown", "--lease", "1m").out
        == "changed queue grown\nlease_ms 30,000 → 60,000\n"
    )


def test_tenant_option_next_to_a_name(server: Served) -> None:
    """It may replace the name, but must not contradict it."""
    server.ok("tenant", "create", "named")
    assert server.ok("tenant", "show", "--tenant", "named", "--json").json["name"] == "named"
    assert server.ok("tenant", "show", "--json").json["name"] == "default"
    assert server.ok("tenant", "show", "named", TENANTQ_TENANT="default").out.startswith("name\tnamed\n")
    refused = server.call("tenant", "create", "other", "--tenant", "named")
    assert (refused.code, refused.err) == (
        2,
        "tenantq: NAME says which tenant is meant (other): omit --tenant. Try 'tenantq tenant create --help'.\n",
    )
    assert server.call("tenant", "show", "other").code == 3


def test_empty_alert_list_names_the_tenant(server: Served) -> None:
    """An administrator's own tenant is only one of many."""
    code, shown = server.run_on_terminal("alert", "list")
    assert (code, shown) == (0, "no active alerts in tenant default; use --platform for all tenants\n")
    assert server.run_on_terminal("alert", "list", "--tenant", "default")[1] == "no active alerts in tenant default\n"
    assert server.ok("alert", "list", "--json").json == {"alerts": []}


def test_ttl_in_weeks(server: Served) -> None:
    """One week is seven days."""
    for name, expires in (("short", "6d23h"), ("guest", "1w"), ("long", "7d1h")):
        server.ok("key", "create", name, "--role", "viewer", "--expires", expires)
    ends = {one["name"]: one["expires_at"] for one in server.ok("key", "list", "--json").json["keys"]}
    assert ends["short"] < ends["guest"] < ends["long"]


def test_whoami_shows_the_token_in_use(server: Served) -> None:
    """This works with any role, even one that may read nothing else. An invalid token is refused."""
    server.ok("tenant", "create", "employer")
    options = ("--tenant", "employer", "--role", "producer", "--queue", "mail*", "--expires", "2199-01-31", "--json")
    made = server.ok("key", "create", "seller", *options).json
    assert server.ok("whoami", TENANTQ_TOKEN=made["token"]).out.splitlines()[1:] == [
        f"principal\tkey:{made['key_id']}",
        "tenant\temployer",
        "role or actions\tproducer",
        "queues\tmail*",
        "expires\t2199-01-31T00:00:00.000Z",
    ]
    own = server.ok("whoami", "--json").json
    assert (own["tenant"], own["grants"][0]["role"], own["expires_at"]) == (None, "platform-admin", None)
    assert server.call("whoami", TENANTQ_TOKEN="tq_wrong").code == 4  # noqa: S106  # not a real token
