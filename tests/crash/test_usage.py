"""Behaviour 47 after SIGKILL: a tenant's usage equals its rows, whenever the process was killed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.administration import usage
from tests.crash import chaos
from tests.crash.recount import JournalTally, recount
from tests.crash.worker import ATTEMPTS, TENANTS
from tests.verbs import Shard

if TYPE_CHECKING:
    from pathlib import Path

KILLS = 6


async def test_47_usage_after_kills_equals_a_recount(tmp_path: Path) -> None:
    """Messages, bytes, leases and queues are recounted; the doctor compares hours and days with the journal."""
    one = chaos.Chaos(tmp_path, seed=47)
    for _ in range(KILLS):
        one.kill_one()
    assert not one.oracle.wrongs, one.report()
    found = recount(one.directory, JournalTally())
    stored = Counter(message.tenant for message in found.messages)
    leased = Counter(message.tenant for message in found.messages if message.state == "in_flight")
    async with Shard(one.directory) as shard:
        used = {tenant: usage(shard, tenant) for tenant in TENANTS}  # at once, before its first round
    for tenant in TENANTS:
        assert used[tenant]["backlog"] == stored[tenant]
        assert used[tenant]["in_flight"] == leased[tenant]
        assert used[tenant]["queues"] == len(ATTEMPTS)
