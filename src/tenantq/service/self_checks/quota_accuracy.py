"""Quota accuracy: compares the counters of quotas with a recount of the rows, some tenants per run."""

import asyncio
from typing import Final

from tenantq.engine.recount import TenantRecount
from tenantq.engine.shard import Shard
from tenantq.service.self_checks.check import CheckResult

_SHOWN_MAX: Final = 3


class QuotaAccuracy:
    """Recounts some tenants per run, up to a number of rows. The next run continues with the next tenants."""

    name = "quota_accuracy"

    def __init__(self, shard: Shard, tenants: int, rows: int) -> None:
        self._shard = shard
        self._tenants = tenants
        self._rows = rows
        self._last = ""  # the last tenant that was recounted
        self._wrong: dict[str, list[str]] = {}  # by tenant, until it is recounted

    async def run(self) -> CheckResult:
        """Snapshot each tenant's counters and rows, and count on a thread."""
        names = sorted(self._shard.state.catalog.tenants)
        behind = [name for name in names if name > self._last]
        rows, tenants, skipped = 0, 0, 0
        for name in (behind + [name for name in names if name <= self._last])[: self._tenants]:
            if tenants and rows >= self._rows:
                break
            tenant = self._shard.state.catalog.tenants.get(name)
            if tenant is None:
                continue  # it was deleted meanwhile
            recount = TenantRecount(self._shard.state, tenant, self._rows - rows)
            try:
                self._wrong[name] = await asyncio.to_thread(recount.run)
            finally:
                recount.close()
            rows, tenants, skipped = rows + recount.rows, tenants + 1, skipped + recount.skipped
            self._last = name
        served = self._shard.state.catalog.tenants
        self._wrong = {name: texts for name, texts in self._wrong.items() if texts and name in served}
        wrong = [text for texts in self._wrong.values() for text in texts]
        if wrong:
            return CheckResult(ok=False, text="; ".join(wrong[:_SHOWN_MAX]) + f" ({len(wrong)} in total)")
        left_out = f", {skipped} queues too long for one run" if skipped else ""
        return CheckResult(ok=True, text=f"{tenants} tenants recounted, {rows} rows{left_out}")
