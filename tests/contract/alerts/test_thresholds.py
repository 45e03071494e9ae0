"""Alerts start when a threshold is exceeded, are sent once, and end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from tenantq.domain.alert_rules import AlertRules
from tenantq.errors import Forbidden, Invalid, NotFound, RateLimited
from tenantq.gates.signals import Alert, SignalSettings
from tenantq.service.alerts import notification_queue
from tenantq.service.alerts.active_alerts import EVENT_MS
from tenantq.service.alerts.journaled_alerts import EVENT_AGE_MAX_MS
from tenantq.service.alerts.settings import AlertSettings
from tenantq.service.metrics.slice_counter import STEPS
from tests.contract.alerts.conftest import Watch
from tests.shards import message


async def pager(watch: Watch, tenant: str = "acme", **rules: object) -> None:
    """Set the target ``pager`` for a tenant."""
    await watch.harness.tenant(tenant, alerts={"targets": ["pager"], **rules})


async def test_quota_alert_is_sent_once_and_resolved(watch: Watch) -> None:
    """Repeated evaluations send nothing new."""
    harness = watch.harness
    await harness.tenant("acme", quotas={"backlog": 10})
    await pager(watch, quota_percent=90)
    key = await harness.key("acme")
    await harness.add(key, "mail", *"12345678")
    await watch.evaluate()
    assert watch.pager.seen == []
    await harness.add(key, "mail", "9")
    await watch.evaluate()
    await watch.evaluate()
    assert watch.pager.seen == [("firing", "quota", "acme", "")]
    assert watch.pager.received[0][1].text == "quota backlog: 9 of 10 in use (threshold 90 %)"
    for delivery in await harness.take(key, "mail", 5):
        await harness.service.settlement.ack(key, None, "mail", [delivery.receipt])
    await watch.evaluate()
    assert [one[0] for one in watch.pager.seen] == ["firing", "resolved"]


async def test_quota_can_have_its_own_threshold(watch: Watch) -> None:
    """It overrides the threshold for all quotas, also that of the server."""
    harness = watch.harness
    watch.use(AlertSettings(tenants=AlertRules(quota_percent=10)))
    await harness.tenant("acme", quotas={"backlog": 10, "queues": 10})
    await pager(watch, quotas={"backlog": 90})
    await pager(watch, "globex", quotas={"backlog": 90})
    key = await harness.key("acme")
    await harness.add(key, "mail", *"12345678")
    await watch.evaluate()
    assert [(one.tenant, one.detail) for _, one in watch.pager.received] == [("acme", "queues")]
    await harness.add(key, "mail", "9")
    await watch.evaluate()
    assert [(one.tenant, one.detail) for _, one in watch.pager.received][1:] == [("acme", "backlog")]
    with pytest.raises(Invalid, match=r"alerts\.quotas\.backlog: out of range \(0, allowed: 1 to 100\)"):
        await pager(watch, quotas={"backlog": 0})
    with pytest.raises(Invalid, match="unknown field"):
        await pager(watch, quotas={"message_bytes": 50})


async def test_lasting_alert_is_repeated(watch: Watch) -> None:
    """The interval is ``repeat_ms``."""
    watch.use(AlertSettings(repeat_ms=60_000))
    await pager(watch, oldest_ms=1_000)
    await watch.harness.add(await watch.harness.key("acme"), "mail")
    for _ in range(4):
        await watch.evaluate(30_000)
    assert [(one.status, one.is_repeat) for _, one in watch.pager.received] == [("firing", False), ("firing", True)]


async def test_oldest_message_and_dead_letter_alerts_are_per_queue(watch: Watch) -> None:
    """Dead letters do not count as old messages."""
    harness = watch.harness
    await pager(watch, oldest_ms=60_000, dead_letters=1)
    key = await harness.key("acme")
    await harness.service.queues.put(key, None, "mail", {"max_attempts": 1})
    await harness.add(key, "mail", "dies")
    [delivery] = await harness.take(key, "mail")
    await harness.service.settlement.nack(key, None, "mail", [delivery.receipt])
    await harness.add(key, "slow")
    await watch.evaluate(120_000)
    assert sorted(watch.pager.seen) == [
        ("firing", "dead_letters", "acme", "mail-dlq"),
        ("firing", "oldest", "acme", "slow"),
    ]


async def test_throttling_is_counted_per_minute(watch: Watch) -> None:
    """It counts calls refused by a limit."""
    harness = watch.harness
    await harness.tenant("acme", limits={"write": {"ops_per_sec": 1, "burst": 1}})
    await pager(watch, throttled_per_minute=3)
    key = await harness.key("acme")
    await watch.evaluate()
    await harness.add(key, "mail")
    for _ in range(3):
        with pytest.raises(RateLimited):
            await harness.add(key, "mail")
    await watch.evaluate()
    assert watch.pager.seen == [("firing", "throttled", "acme", "")]
    await watch.evaluate(120_000)
    await watch.evaluate(120_000)
    assert watch.pager.seen[-1][0] == "resolved"


async def test_restart_continues_alerts(watch: Watch) -> None:
    """They keep their start, are journaled once, and end even if their cause ended while no server ran."""
    harness, reactions = watch.harness, list[Alert]()
    await harness.tenant("acme", quotas={"backlog": 3})
    await pager(watch, oldest_ms=1_000, quota_percent=60)
    key = await harness.key("acme")
    await harness.add(key, "mail", "one", "two")
    await harness.add(key, "done")
    await watch.evaluate()
    began = {(one.kind, one.queue, one.detail): one.since for one in (await watch.alerts.list(harness.admin)).alerts}
    assert set(began) == {("oldest", "mail", ""), ("oldest", "done", ""), ("quota", "", "backlog")}
    (delivery,) = await harness.take(key, "done")
    await harness.service.settlement.ack(key, None, "done", [delivery.receipt])
    watch.pager.received.clear()
    watch.use(AlertSettings(), react=reactions.append)  # as a restart does
    await watch.evaluate(3_600_000)
    seen = {(one.status, one.kind, one.queue): one for _, one in watch.pager.received}
    assert set(seen) == {("firing", "oldest", "mail"), ("firing", "quota", ""), ("resolved", "oldest", "done")}
    assert seen["firing", "oldest", "mail"].is_repeat
    listed = (await watch.alerts.list(harness.admin)).alerts
    assert {(one.kind, one.queue, one.detail): one.since for one in listed}.items() <= began.items()
    assert reactions == []
    assert Counter(row.op for row in await harness.rows() if "alert" in row.op) == {"alert": 3, "resolve_alert": 1}


async def test_restart_continues_events(watch: Watch) -> None:
    """A burst of denials is active after a restart as long as without one, and ends for each principal on its own."""
    harness, signals, reactions = watch.harness, watch.harness.admission.notes.signals, list[Alert]()
    signals.settings = SignalSettings(denials_per_minute=1)
    await pager(watch)
    start = harness.clock.wall_ms()
    for principal in ("key:old", "key:new"):
        for _ in range(2):
            signals.denied(principal, "acme")
        await watch.evaluate(EVENT_MS // 3)
    began = {one.detail: one.since for one in (await watch.alerts.list(harness.admin)).alerts}
    assert began == {"key:old": start, "": start, "key:new": start + EVENT_MS // 3}
    watch.pager.received.clear()
    watch.use(AlertSettings(), react=reactions.append)  # as a restart does
    await watch.evaluate(EVENT_MS // 3)
    left = {one.detail: one.since for one in (await watch.alerts.list(harness.admin)).alerts}
    assert left == {"": start, "key:new": start + EVENT_MS // 3}
    seen = [(one.status, one.detail, one.is_repeat) for _, one in watch.pager.received]
    assert sorted(seen) == [("firing", "", True), ("firing", "key:new", True), ("resolved", "key:old", False)]
    await watch.evaluate(EVENT_MS)
    ended = {(one.status, one.detail) for _, one in watch.pager.received[3:]}
    assert ended == {("resolved", ""), ("resolved", "key:new")}
    watch.pager.received.clear()
    watch.use(AlertSettings(), react=reactions.append)
    await watch.evaluate()
    assert watch.pager.received == []
    assert reactions == []
    rows = [row for row in await harness.rows() if row.op == "resolve_alert"]
    assert sorted(row.principal for row in rows) == ["", "key:new", "key:old"]


async def test_event_that_lasts_keeps_its_begin_over_a_restart(watch: Watch) -> None:
    """It was reported several times; the first time counts, also if it is reported again before the first evaluation."""
    harness, signals = watch.harness, watch.harness.admission.notes.signals
    signals.settings = SignalSettings(cross_tenant_per_minute=1, quiet_ms=0)
    await pager(watch)
    start = harness.clock.wall_ms()
    for _ in range(4):
        for _ in range(2):
            signals.crossed("key:abc", "acme", "globex")
        await watch.evaluate(EVENT_MS // 2)
    watch.use(AlertSettings())
    for _ in range(2):
        signals.crossed("key:abc", "acme", "globex")
    await watch.evaluate(1_000)
    [listed] = (await watch.alerts.list(harness.admin)).alerts
    assert (listed.kind, listed.detail, listed.severity, listed.since) == ("cross_tenant", "key:abc", "critical", start)


async def test_events_of_earlier_days_are_not_continued(watch: Watch) -> None:
    """People are not told today that something of last week is over."""
    harness, signals = watch.harness, watch.harness.admission.notes.signals
    signals.settings = SignalSettings(denials_per_minute=1)
    await pager(watch)
    for _ in range(2):
        signals.denied("key:abc", "")
    await watch.evaluate()
    watch.pager.received.clear()
    await harness.pass_time(EVENT_AGE_MAX_MS)
    watch.use(AlertSettings())
    await watch.evaluate()
    assert watch.pager.received == []


async def test_lasting_throttling_is_one_alert(watch: Watch) -> None:
    """It is not resolved and sent again every minute."""
    harness = watch.harness
    await harness.tenant("acme", limits={"write": {"ops_per_sec": 1, "burst": 1}})
    await pager(watch, throttled_per_minute=30)
    key = await harness.key("acme")
    for _ in range(20):  # of ten seconds
        for _ in range(10):
            with suppress(RateLimited):
                await harness.add(key, "mail")
        await watch.evaluate()
    assert watch.pager.seen == [("firing", "throttled", "acme", "")]


async def test_alerts_above_the_capacity_of_a_target_are_sent_later(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All alerts and their ends are sent. Another target gets them although one is down."""
    monkeypatch.setattr(notification_queue, "WAITING_MAX", 10)
    harness, count = watch.harness, 35
    for at in range(count):
        await harness.tenant(
            f"tenant-{at}", quotas={"queues": 1}, alerts={"targets": ["pager", "mail"], "quota_percent": 90}
        )
        await harness.add(await harness.key(f"tenant-{at}"), "mail")
    watch.pager.failures_left = 10**6
    for _ in range(8):
        await watch.evaluate(1_000)
    assert Counter(watch.mail.seen) == Counter(("firing", "quota", f"tenant-{at}", "") for at in range(count))
    for at in range(count):
        await harness.tenant(f"tenant-{at}", quotas={"queues": 10})
    for _ in range(8):
        await watch.evaluate(1_000)
    assert Counter(one[0] for one in watch.mail.seen) == {"firing": count, "resolved": count}
    assert watch.watch.alerts.active == []


async def test_silenced_alerts_are_in_the_audit_trail(watch: Watch) -> None:
    """The server reacts to them too."""
    harness, reactions = watch.harness, list[Alert]()
    watch.use(AlertSettings(), react=reactions.append)
    await pager(watch, oldest_ms=1_000, silenced_until=harness.clock.wall_ms() + 600_000)
    key = await harness.key("acme")
    await harness.add(key, "mail")
    for _ in range(3):
        await watch.evaluate()
    [delivery] = await harness.take(key, "mail")
    await harness.service.settlement.ack(key, None, "mail", [delivery.receipt])
    await watch.evaluate()
    assert [row.op for row in await harness.rows() if "alert" in row.op] == ["alert", "resolve_alert"]
    assert [one.kind for one in reactions] == ["oldest"]
    assert watch.pager.seen == []


async def test_tenant_inherits_the_servers_thresholds(watch: Watch) -> None:
    """Each threshold is inherited separately."""
    harness = watch.harness
    watch.use(AlertSettings(tenants=AlertRules(oldest_ms=60_000)))
    await harness.tenant("acme", alerts={"targets": ["pager"]})
    await harness.tenant("globex", alerts={"targets": ["pager"], "oldest_ms": 3_600_000})
    for tenant in ("acme", "globex"):
        await harness.add(await harness.key(tenant), "mail")
    await watch.evaluate(120_000)
    assert watch.pager.seen == [("firing", "oldest", "acme", "mail")]


async def test_silenced_alerts_are_listed_and_sent_when_the_silence_ends(watch: Watch) -> None:
    """A silence delays notifications; it hides nothing."""
    harness = watch.harness
    await pager(watch, oldest_ms=1_000, silenced_until=harness.clock.wall_ms() + 60_000)
    await harness.add(await harness.key("acme"), "mail")
    await watch.evaluate(10_000)
    assert watch.pager.seen == []
    [listed] = (await watch.alerts.list(harness.admin)).alerts
    assert (listed.kind, listed.silenced) == ("oldest", True)
    await watch.evaluate(60_000)
    assert watch.pager.seen == [("firing", "oldest", "acme", "mail")]


async def test_alert_that_ends_while_silenced_is_never_sent(watch: Watch) -> None:
    """Its end means nothing to people who did not see it begin."""
    harness = watch.harness
    await pager(watch, oldest_ms=1_000, silenced_until=harness.clock.wall_ms() + 60_000)
    key = await harness.key("acme")
    await harness.add(key, "mail")
    await watch.evaluate(10_000)
    [delivery] = await harness.take(key, "mail")
    await harness.service.settlement.ack(key, None, "mail", [delivery.receipt])
    await watch.evaluate(120_000)
    assert watch.pager.seen == []


async def test_security_signals_are_sent_and_end_on_their_own(watch: Watch) -> None:
    """Bursts have no end that the server could detect."""
    harness = watch.harness
    await pager(watch)
    for _ in range(100_001):
        harness.admission.notes.signals.denied("key:abc", "acme")
    await watch.evaluate()
    assert ("firing", "denials", "acme", "") in watch.pager.seen
    await watch.evaluate(3_600_000)
    assert ("resolved", "denials", "acme", "") in watch.pager.seen


async def test_alerts_are_journaled_once(watch: Watch) -> None:
    """The audit trail shows what people were notified of."""
    harness = watch.harness
    await pager(watch, oldest_ms=1_000)
    await harness.add(await harness.key("acme"), "mail")
    await watch.evaluate()
    await watch.evaluate()
    rows = [row for row in await harness.rows() if row.op == "alert"]
    assert [(row.tenant, row.outcome) for row in rows] == [("acme", "oldest")]
    assert "queue mail: the oldest ready message has waited" in rows[0].details


async def test_failed_deliveries_are_repeated_in_order_with_the_same_id(watch: Watch) -> None:
    """A target that was down gets everything later, once."""
    harness = watch.harness
    await pager(watch, oldest_ms=1_000)
    watch.pager.failures_left = 2
    await harness.add(await harness.key("acme"), "mail")
    await watch.evaluate()
    assert watch.pager.received == []
    await harness.add(await harness.key("acme"), "other")
    await watch.evaluate()
    for _ in range(4):
        await harness.pass_time(10_000)
    assert [queue for *_, queue in watch.pager.seen] == ["mail", "other"]
    assert len(set(watch.pager.attempts)) == 2
    assert watch.watch.notifications.counts["pager", "sent"] == 2


async def test_tenant_sees_only_its_own_alerts(watch: Watch) -> None:
    """The credential must allow reading its usage."""
    harness = watch.harness
    await pager(watch, oldest_ms=1_000)
    await pager(watch, "globex", oldest_ms=1_000)
    for tenant in ("acme", "globex"):
        await harness.add(await harness.key(tenant), "mail")
    await watch.evaluate()
    key = await harness.key("acme")
    assert [one.tenant for one in (await watch.alerts.list_tenant(key, None)).alerts] == ["acme"]
    with pytest.raises(Forbidden):
        await watch.alerts.list(key)
    with pytest.raises(Forbidden):
        await watch.alerts.list_tenant(key, "globex")


async def test_targets_are_checked_and_tested(watch: Watch) -> None:
    """An unknown name is refused when it is set; a test notification says why the target did not accept it."""
    harness = watch.harness
    with pytest.raises(Invalid, match=r"alerts\.targets: unknown target \('gone', defined: mail, pager\)"):
        await harness.tenant("acme", alerts={"targets": ["gone"]})
    assert (await watch.alerts.test(harness.admin, "mail")).delivered
    watch.mail.failures_left = 1
    failed = await watch.alerts.test(harness.admin, "mail")
    assert (failed.delivered, failed.error) == (False, "out of order")
    with pytest.raises(NotFound, match="unknown target"):
        await watch.alerts.test(harness.admin, "gone")


def test_settings_refuse_targets_that_do_not_exist() -> None:
    """The server does not start with them."""
    with pytest.raises(Invalid, match=r"targets: unknown target \('pager', allowed: none\)"):
        AlertSettings(targets=("pager",))


async def test_evaluation_of_10000_queues_yields_to_other_work(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """One turn of the event loop examines one slice of queues, or sends one slice of alerts."""
    harness, count = watch.harness, 10_000
    await pager(watch, oldest_ms=1_000)
    for start in range(0, count, 500):
        await asyncio.gather(*(harness.shard.add("acme", f"q-{start + at}", [message()]) for at in range(500)))
    await harness.pass_time(10_000)
    turn, steps = 0, Counter[tuple[str, int]]()

    def counted(owner: object, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            steps[name, turn] += 1
            return function(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    counted(harness.shard.state.catalog, "dead_letter_name")
    counted(watch.watch._thresholds, "_queue")
    counted(watch.watch.alerts, "_keep")
    counted(watch.watch.notifications, "send")
    evaluation = asyncio.ensure_future(watch.watch.evaluate())
    while not evaluation.done():
        await asyncio.sleep(0)
        turn += 1
    await evaluation
    for name, times in (("dead_letter_name", 2), ("_queue", 1), ("_keep", 1), ("send", 1)):
        assert sum(done for (step, _), done in steps.items() if step == name) == count * times
    assert max(steps.values()) <= STEPS
