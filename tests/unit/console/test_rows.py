"""The rows of tenants, queues, quotas, messages and the audit trail."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tenantq.client import StoredMessage
from tenantq.console.message_rows import HIDDEN, body_text, dead_rows, message_rows
from tenantq.console.not_granted import NOT_GRANTED
from tenantq.console.queue_rows import (
    encryption_line,
    encryption_state,
    limited_quotas,
    queue_row,
    quota_rows,
    rate_limits,
    setting_rows,
    truncation_note,
)
from tenantq.console.rate_history import RateHistory
from tenantq.console.reader import ConsoleSnapshot
from tenantq.console.security_rows import FILTERS, AuditFilter, audit_rows, key_rows, next_filter, parse_filter
from tenantq.console.state import ConsoleState
from tenantq.console.tenant_rows import (
    TenantSummary,
    arrange,
    dead_in,
    own_summary,
    summary_line,
    tenant_row,
    tenant_totals,
)
from tenantq.console.tenant_settings import changed_settings, check_destroy, form_fields
from tenantq.domain.message import DeadLetter, HistoryEntry
from tenantq.errors import ConnectionFailed, Invalid, RateLimited
from tenantq.wire.access import KeyItem
from tenantq.wire.queues import QueueReply
from tenantq.wire.tenants import DataKeyItem, EncryptionReply, UsageItem, UsageReply

NOW = 1_700_000_000_000


def _queue(name: str = "mail", **given: Any) -> QueueReply:
    counts = {field: 0 for field in QueueReply.__struct_fields__ if field not in ("name", "tenant", "status", "config")}
    return QueueReply(**{"name": name, "tenant": "acme", "status": "active", "config": {}, **counts, **given})


def _usage(**limits: tuple[int, int | None]) -> UsageReply:
    names = ("messages_per_hour", "messages_per_day", "backlog", "stored_bytes", "in_flight", "queues")
    items = {}
    for name in names:
        used, limit = limits.get(name, (0, None))
        items[name] = UsageItem(limit=limit, used=used, remaining=None, state="good", resets_at=None)
    return UsageReply(tenant="acme", state="good", quotas=items)


def _message(**given: Any) -> StoredMessage:
    facts: dict[str, Any] = {
        "id": "m", "tenant": "acme", "queue": "mail", "state": "ready", "body": b"", "hidden": False, "encrypted": False,
        "body_error": None, "size": 3, "priority": 0, "attributes": {}, "group": None, "attempts": 0, "max_attempts": 3,
        "added_at": NOW - 60_000, "visible_at": NOW, "expires_at": None, "lease_until": None, "history": (), "dead": None,
    }  # fmt: skip
    return StoredMessage(**{**facts, **given})


def test_numbers_sort_descending_with_unknown_last() -> None:
    """Ties are sorted by name, and sorting again reverses the order."""
    lines = [
        TenantSummary(name="b", number=2, backlog=5),
        TenantSummary(name="a", number=1, backlog=5),
        TenantSummary(name="c", number=3, backlog=9),
        TenantSummary(name="d", number=4),
    ]
    assert [line.name for line in arrange(lines, "backlog", reverse=False, text="")] == ["c", "a", "b", "d"]
    assert arrange(lines, "backlog", reverse=True, text="")[0].name == "d"
    assert [line.name for line in arrange(lines, "name", reverse=True, text="")] == ["d", "c", "b", "a"]


def test_rows_without_permission_say_so() -> None:
    """They have no figures, because a zero would be wrong."""
    cells = tenant_row(own_summary("acme")).cells
    assert (cells["quota"].text, cells["status"].text) == ("not granted", "not granted")
    assert {cells[name].text for name in ("backlog", "dead", "throttled", "weight", "bytes")} == {"-"}
    assert quota_rows(NOT_GRANTED)[0].cells["use"].text == "not granted"
    assert limited_quotas(NOT_GRANTED) == ["quotas: not granted"]
    assert encryption_line(NOT_GRANTED) == encryption_state(NOT_GRANTED) == "encryption: not granted"


def test_problems_are_summarized() -> None:
    """How many tenants are critical, have warnings or are suspended; healthy ones are not mentioned."""
    lines = [
        TenantSummary(name="a", number=1, health="critical", status="suspended"),
        TenantSummary(name="b", number=2, health="good", status="active"),
    ]
    assert summary_line(lines) == "2 tenants, 1 critical, 1 suspended"
    assert summary_line(lines[1:]) == "1 tenant"


def test_dead_letters_of_shared_queues_count_once() -> None:
    """Two queues may share a dead-letter queue."""
    queues = [_queue("a", config={"dead_letter": "x"}), _queue("b", config={"dead_letter": "x"}), _queue("x", ready=3)]
    assert dead_in([*queues, _queue("c"), _queue("c-dlq", ready=1, in_flight=1)]) == 5


def test_a_paused_queue_and_its_dead_letters_stand_out() -> None:
    """By text and by colour."""
    cells = queue_row(_queue(status="paused", dead=2, oldest_age_ms=90_000), RateHistory()).cells
    assert (cells["status"].text, cells["status"].tone) == ("paused", "warning")
    assert (cells["dead"].text, cells["dead"].tone, cells["oldest"].text) == ("2", "warning", "1m30s")


def test_quotas_nearest_to_their_limit_come_first() -> None:
    """A quota of zero is full, and quotas without a limit are not listed."""
    lines = limited_quotas(_usage(backlog=(50, 100), queues=(0, 0), stored_bytes=(1 << 20, 1 << 30)))
    assert [line.split("% ")[1] for line in lines] == [
        "queues, 0 of 0",
        "backlog, 50 of 100",
        "stored bytes, 1.0 MiB of 1.0 GiB",
    ]
    assert lines[1].startswith("█████░░░░░  50%")
    assert limited_quotas(_usage()) == ["no quotas are set"]


def test_encryption_is_shown_with_the_state_of_its_key() -> None:
    """In a short and a long form."""
    reply = EncryptionReply(
        tenant="acme", enabled=True, key="local:k", key_state="denied", key_error=None, secret_attributes=(),
        rotate_every_ms=1, next_rotation_at=None, data_keys=[DataKeyItem(number=1, key="k", created_at=1, uses=1)],
    )  # fmt: skip
    assert encryption_state(reply) == "encrypted, key denied"
    assert encryption_line(reply) == "encryption: on, key denied, 1 data key, wrapped by local:k"
    off = msgspec.structs.replace(reply, enabled=False)
    assert (encryption_state(off), encryption_line(off)) == ("not encrypted", "encryption: off, 1 older data keys")


def test_limits_and_settings_are_formatted_for_people() -> None:
    """Only limits that are set, durations with a unit, and nested names with dots."""
    config = {
        "limits": {"write": {"ops_per_sec": 500, "bytes_per_sec": 1 << 20}, "read": {}},
        "lease_ms": 30_000,
        "x": [],
    }
    assert rate_limits(config) == "write 500/s and 1.0 MiB/s"
    assert rate_limits({}) == "no rate limits"
    shown = {row.key: row.cells["value"].text for row in setting_rows(config)}
    assert (shown["lease_ms"], shown["limits.write.ops_per_sec"], shown["x"]) == ("30s (30,000 ms)", "500", "-")


def test_a_truncated_list_says_so() -> None:
    """With the total if it is known."""
    assert truncation_note(range(9), 10, 9) == ""
    assert truncation_note(range(10), 10, 25) == "first 10 of 25"
    assert truncation_note(range(10), 10, None) == "first 10"


def test_hidden_bodies_and_control_characters_are_not_shown() -> None:
    """JSON is indented, and a body that cannot be decrypted says why."""
    assert body_text(_message(hidden=True)) == HIDDEN
    assert message_rows([_message(hidden=True)], NOW)[0].cells["body"].text == "(hidden)"
    assert body_text(_message(body_error="seal_broken")).startswith("(seal_broken")
    assert "\x1b" not in body_text(_message(body=b"\x1b[2Jgone\x07"))
    assert body_text(_message(body=b'{"a":1}')) == '{\n  "a": 1\n}'
    assert body_text(_message(body=b"{not json")) == "{not json"
    assert body_text(_message(body=b"x" * 20_000)).endswith("and 3,616 more characters")


def test_a_dead_letter_shows_its_reason_and_history() -> None:
    """Reason, origin, and the end of every delivery."""
    history = (HistoryEntry(1, NOW, "nacked", "boom"), HistoryEntry(2, NOW, "lease_expired", ""))
    cells = dead_rows([_message(dead=DeadLetter("boom", "mail", 2, NOW), history=history)])[0].cells
    assert (cells["reason"].text, cells["source"].text, cells["attempts"].text) == ("boom", "mail", "2")
    assert cells["history"].text == "1: nacked; 2: lease_expired"


def test_audit_rows_show_how_many_calls_they_represent() -> None:
    """Rows of today show a time, older ones a date."""
    rows = [
        {
            "ts": NOW,
            "op": "add",
            "outcome": "throttled",
            "error_code": "rate_limited",
            "count": 7,
            "principal": "key:a",
        },
        {"ts": NOW - 3 * 86_400_000, "op": "purge", "outcome": "ok", "shard": "s", "seq": 1, "n": 0},
    ]
    new, old = audit_rows(rows, NOW)
    assert (new.cells["outcome"], new.cells["code"].text) == (("throttled x7", "warning"), "rate_limited")
    assert (new.cells["time"].text, old.cells["time"].text) == ("22:13:20", "11-11")
    assert (old.key, old.cells["tenant"].text) == ("s/1/0", "(platform)")


def test_revoked_and_expired_keys_come_last() -> None:
    """Valid keys are listed first."""

    def key(name: str, **given: Any) -> KeyItem:
        facts = {
            "role": "viewer",
            "actions": (),
            "queues": ("*",),
            "expires_at": None,
            "created_at": 1,
            "created_by": "x",
        }
        return KeyItem(**{"key_id": name, "name": name, "revoked_at": None, "last_used_at": None, **facts, **given})

    rows = key_rows([key("a", revoked_at=1), key("b", expires_at=NOW), key("c", expires_at=NOW + 1)], NOW)
    assert [(row.key, row.cells["state"].text) for row in rows] == [("c", "valid"), ("a", "revoked"), ("b", "expired")]


def test_filters_are_parsed_or_refused_by_name() -> None:
    """Case does not matter. A plain number is refused as a duration, because milliseconds would surprise."""
    wanted = parse_filter({"result": "denied", "back": "24h", "principal": " key:a "}, platform=True)
    assert wanted == AuditFilter(result="DENIED", back_ms=86_400_000, principal="key:a", platform=True)
    assert wanted.asked(100 * 86_400_000)["start"] == 99 * 86_400_000
    assert wanted.described() == "DENIED, key:a, last 24 h"
    for typed in ({"result": "maybe"}, {"back": "5"}, {"back": "soon"}):
        with pytest.raises(Invalid):
            parse_filter(typed, platform=False)


def test_a_key_cycles_through_the_common_filters() -> None:
    """The scope of the page is kept. From a typed filter the cycle starts over."""
    start = msgspec.structs.replace(FILTERS[0], platform=True)
    now = start
    for _ in FILTERS:
        now = next_filter(now)
        assert now.platform
    assert now == start
    assert next_filter(AuditFilter(queue="mail")) == FILTERS[0]


def test_a_form_sends_only_changed_fields() -> None:
    """An emptied field removes the limit, and sizes may have units."""
    config = {"weight": 2, "quotas": {"backlog": 100, "soft_percent": 80}, "limits": {"write": {"ops_per_sec": 5}}}
    typed = {field.name: field.value for field in form_fields(config)}
    assert changed_settings(config, typed) == {}
    typed |= {"quotas.backlog": "", "quotas.stored_bytes": "10MiB", "limits.write.ops_per_sec": "5,000", "weight": ""}
    assert changed_settings(config, typed) == {
        "quotas": {"backlog": None, "stored_bytes": 10 << 20},
        "limits": {"write": {"ops_per_sec": 5_000}},
    }
    for wrong in ("many", "true", "1.5"):
        with pytest.raises(Invalid, match="backlog"):
            changed_settings(config, {"quotas.backlog": wrong})


def test_irreversible_actions_require_name_and_reason() -> None:
    """A reason of spaces is refused."""
    assert check_destroy("mail", {"confirm": "mail", "reason": " no longer needed "}) == "no longer needed"
    for typed in ({"confirm": "Mail", "reason": "no longer needed"}, {"confirm": "mail", "reason": "   why      "}):
        with pytest.raises(Invalid):
            check_destroy("mail", typed)


def test_the_status_shows_the_age_of_its_figures() -> None:
    """An unreachable server is retried; any other error is shown with its code."""
    state = ConsoleState("http://here")
    state.failed(ConnectionFailed())
    assert state.problem == "cannot reach http://here; retrying"
    state.update(ConsoleSnapshot(tenants=[], everyone=True, view=None, at_ms=1, listed_at_ms=1, wall_ms=NOW))
    assert state.problem == ""
    state.failed(RateLimited("too\nmany"))
    assert state.problem == "too many [rate_limited]; figures from 22:13:20 UTC"


def test_a_tenant_without_work_is_marked_idle() -> None:
    """Nothing is stored, and nothing was added or completed between two readings."""
    idle, busy, full = (
        TenantSummary(name=name, number=1, status="active", backlog=backlog, added=added, acked=0)
        for name, backlog, added in (("idle", 0, 5), ("busy", 0, 5), ("full", 1, 5))
    )
    rates = RateHistory()
    rates.read(tenant_totals([idle, busy, full]), 1_000)
    assert tenant_row(idle, rates).cells["status"].text == "active"  # not known yet
    rates.read(tenant_totals([idle, full]) | {"busy/added": 9, "busy/done": 0}, 3_000)
    assert [tenant_row(one, rates).cells["status"].text for one in (idle, busy, full)] == ["idle", "active", "active"]
    assert tenant_row(busy, rates).cells["added"].text == "2"
