"""Audit integrity: checks the hash chain of new journal records, the signatures of checkpoints, and older records again."""

import asyncio
from typing import Final

from tenantq.engine.shard import Shard
from tenantq.errors import StoreDamaged
from tenantq.journal.chain import ChainWalk
from tenantq.journal.signing import PublicKey, PublicKeys
from tenantq.service.self_checks.check import CheckResult

_PAGE: Final = 64
_SHOWN_MAX: Final = 3
_REMEMBERED_MAX: Final = 1_000


class AuditIntegrity:
    """Verifies new records, then some older ones in turn, up to a limit per run."""

    name = "audit_integrity"

    def __init__(self, shard: Shard, key: PublicKey | PublicKeys, records: int) -> None:
        self._shard = shard
        self._key = key
        self._records = records
        self._verified_seq = 0  # the newest verified record and its hash
        self._verified_link = b""
        self._older_seq = 0  # where the check of older records continues
        self._bad: dict[int, str] = {}  # findings, kept until their records are trimmed

    async def run(self) -> CheckResult:
        """Verify, on a thread."""
        return await asyncio.to_thread(self._run)

    def _run(self) -> CheckResult:
        findings: list[tuple[int, str]] = []
        first, last = self._shard.journal.synced_span
        fresh = self._fresh(first, last, findings)
        older = self._older(first, self._records - fresh, findings)
        for seq, text in findings[:_REMEMBERED_MAX]:
            self._bad.setdefault(seq, text)
        kept_from = self._shard.journal.synced_span[0]
        self._bad = {seq: text for seq, text in self._bad.items() if seq >= kept_from}
        bad = sorted(self._bad.items())[:_REMEMBERED_MAX]
        if bad:
            shown = " ".join(text for _, text in bad[:_SHOWN_MAX])
            return CheckResult(ok=False, text=f"record {bad[0][0]} cannot be trusted: {shown}")
        behind = last - self._verified_seq
        waiting = f", {behind} wait for the next run" if behind > 0 else ""
        return CheckResult(ok=True, text=f"{fresh} new and {older} older records follow the chain{waiting}")

    def _fresh(self, first: int, last: int, findings: list[tuple[int, str]]) -> int:
        """Verify new records; return how many there were."""
        seq, link = self._verified_seq, self._verified_link
        if seq < first - 1 or not link:
            seq = max(first - 1, last - self._records)  # older records follow later
            link = self._link(seq, findings)
        walk = self._walk(seq, link, min(last, seq + self._records), findings)
        self._verified_seq, self._verified_link = walk.seq, walk.link
        return walk.records

    def _older(self, first: int, records: int, findings: list[tuple[int, str]]) -> int:
        """Verify some older records, from where the last run ended; from the start once the end was reached."""
        seq = self._older_seq
        if not first - 1 <= seq < self._verified_seq:
            seq = first - 1
        end = min(self._verified_seq, seq + max(0, records))
        walk = self._walk(seq, self._link(seq, findings), end, findings)
        self._older_seq = walk.seq if walk.seq < self._verified_seq else 0
        return walk.records

    def _link(self, seq: int, findings: list[tuple[int, str]]) -> bytes:
        try:
            return self._shard.journal.link(seq)
        except StoreDamaged:
            findings.append((seq, f"Record {seq} is missing."))
            return b""

    def _walk(self, seq: int, link: bytes, end: int, findings: list[tuple[int, str]]) -> ChainWalk:
        walk = ChainWalk(seq, link, lambda at, text: findings.append((at, text)), key=self._key)
        for at, value in self._shard.journal.checkpoints(seq + 1):
            if at <= end:
                walk.expect_checkpoint(at, value)
        while walk.seq < end and (page := self._shard.journal.scan(walk.seq + 1, end, _PAGE)):
            for at, value in page:
                walk.record(at.to_bytes(8), value)
        if walk.seq < end:
            walk.end((end, "the shard"))
        return walk
