"""The journal of a platform: growing tenants, one whose workers fail for a day, attacks, and hostile names."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tenantq.pipeline.price_book import Credit, Item, PriceBook, SharedCost, Tier
from tests.pipeline.journals import DAY, HOUR, MINUTE, START, JournalWriter, entry, message_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenantq.journal.export_target import DirectoryTarget
    from tenantq.journal.record import JournalEntry
    from tenantq.journal.signing import SigningKey

HOSTILE_TENANT = "<script>alert('tenant')</script>"
HOSTILE_QUEUE = '"><img src=http://evil.invalid/x onerror=alert(1)>'
HOSTILE_DETAILS = "</style></script><script>fetch('http://evil.invalid')</script> \u202egnp.exe \x00\x1b[31m {{ 7*7 }}"
TENANTS = ("acme", "globex", "initech", HOSTILE_TENANT)
PRICES = PriceBook(
    minimum="5.00",
    items=[Item("Operations", "operations", [Tier("1.2345")]), Item("Storage <b>", "gb_hours", [Tier("12.5")])],
    credits=[Credit("globex", "2026-01", "1.25", HOSTILE_DETAILS)],
    shared=[SharedCost("Platform", "100.00", "operations")],
)
BROKEN = "globex"
"""Its workers fail all messages on one day."""


class Platform:
    """Writes the records of one shard, day by day; the same seed writes the same journal."""

    def __init__(self, writer: JournalWriter, tenants: Sequence[str], seed: int = 7) -> None:
        self.writer, self.tenants, self.random = writer, tenants, random.Random(seed)
        self.number = 0

    def begin(self) -> None:
        """Create the tenants, with quotas and regions."""
        quotas = '{"quotas":{"messages_per_day":400,"backlog":900,"stored_bytes":3000000}'
        for place, tenant in enumerate(self.tenants):
            regions = ',"regions":["eu"]}' if place % 2 else "}"
            self.writer.record(START, entry("create_tenant", tenant, "", principal="root", details=quotas + regions))

    def day(self, number: int, broken_day: int, rounds: int) -> None:
        """Write a day of all tenants."""
        for at in range(rounds):
            ts = START + number * DAY + (6 + at * 12 // rounds) * HOUR
            for place, tenant in enumerate(self.tenants):
                queues = (
                    (HOSTILE_QUEUE, "mail") if tenant == HOSTILE_TENANT else (f"{tenant}-orders", f"{tenant}-mail.fifo")
                )
                for queue in queues[: 1 if place == 2 else 2]:
                    broken = tenant == BROKEN and number == broken_day
                    self._serve(tenant, queue, ts, 3 + place * 2 + number * (place % 2 + 1) // 3, broken=broken)
            self.writer.segment()
        if number == broken_day:
            self._attack(START + number * DAY + 20 * HOUR)
            self.writer.segment()

    def _serve(self, tenant: str, queue: str, ts: int, count: int, *, broken: bool) -> None:
        draw = self.random.randint
        count += draw(0, 3)
        ids = []
        for _ in range(count):
            self.number += 1
            ids.append(message_id(self.number, ts))
        sizes = [draw(200, 9_000) for _ in ids]
        who = {"principal": f"key:{tenant[:4].strip('<')}1", "remote": "198.51.100.7:4711"}
        self.writer.record(ts, entry("add", tenant, queue, ids=b"".join(ids), size=sizes, priority=5, **who))
        taken = count - draw(0, 1)  # some stay, so the stored bytes grow
        waits = [draw(10, 4_000) * (40 if broken else 1) for _ in range(taken)]
        got = {"ids": b"".join(ids[:taken]), "size": sizes[:taken]}
        self.writer.record(
            ts + 5 * MINUTE, entry("poll", tenant, queue, priority=5, attempt=[1] * taken, wait_ms=waits, **got, **who)
        )
        times = {"process_ms": [draw(5, 900) for _ in range(taken)]}
        if broken:
            dead = [
                entry("dead_letter", tenant, queue, principal="system", ids=id, size=size, attempt=1, outcome="dead",
                      details=f"to {queue}-dlq: MAX_ATTEMPTS")
                for id, size in zip(ids[:taken], sizes, strict=False)
            ]  # fmt: skip
            self.writer.record(ts + 6 * MINUTE, *dead, entry("nack", tenant, queue, details=HOSTILE_DETAILS, **got, **times, **who))  # fmt: skip
        else:
            self.writer.record(ts + 6 * MINUTE, entry("ack", tenant, queue, **got, **times, **who))

    def _attack(self, ts: int) -> None:
        """Write a burst of denials, attempts on other tenants, a throttled flood, a key from a new network, and an alert with hostile text."""
        found: list[JournalEntry] = [
            entry("peek", tenant, "", principal="key:evil", outcome="denied", error_code="forbidden", count=90,
                  remote="203.0.113.9:999")
            for tenant in self.tenants
        ]  # fmt: skip
        found.append(entry("add", "acme", "acme-orders", outcome="throttled", error_code="rate_limited", count=1_234))
        found.append(entry("peek", "acme", "acme-orders", principal="key:acme1", remote="192.0.2.1:5"))
        found.append(entry("alert", "initech", "", principal="key:evil", outcome="denials", details=HOSTILE_DETAILS))
        self.writer.record(ts, *found)


def write_days(
    target: DirectoryTarget, *, days: int, rounds: int, key: SigningKey | None = None, tenants: Sequence[str] = TENANTS
) -> JournalWriter:
    """Write a number of days; the second to last is the bad one."""
    writer = JournalWriter(target, key)
    platform = Platform(writer, tenants)
    platform.begin()
    for number in range(days):
        platform.day(number, days - 2, rounds)
    return writer
