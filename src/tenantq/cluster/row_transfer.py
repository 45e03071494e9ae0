"""Copies the rows of a tenant that moves, while its shard serves it, and then the rest."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tenantq.engine.access_store import KEY_ROW, USE_ROW
from tenantq.engine.catalog import QUEUE_ROW
from tenantq.engine.shard import Shard
from tenantq.engine.tenant_rows import RowCapture, RowChange, shifted
from tenantq.errors import Unavailable
from tenantq.store.keys import after

PART_BYTES: Final = 512 << 10
PART_ROWS: Final = 512
"""Most rows of one part. Each part is one operation of the target."""

PAGE_ROWS_FIRST: Final = 16
SMALL_REST: Final = 200
"""With no more changes than this left, the tenant is fenced."""

CATCH_UPS_MAX: Final = 20
"""Attempts to get below that before the tenant is fenced anyway."""

SendRows = Callable[[list[RowChange], bytes, list[str]], Awaitable[int]]
"""Sends rows, the tenant's own row or nothing, and the IDs of its API keys. Returns how many rows were written."""


class RowTransfer:
    """Copies the rows of one tenant, or of a group of its queues. Used on the event loop of the shard."""

    def __init__(self, shard: Shard, name: str, shift_ms: int, send: SendRows, report: Callable[[int], None]) -> None:
        """Prepare. ``send`` returns how many rows the target wrote. ``report`` gets their number, and raises an error to stop the copy."""
        self._shard, self._name, self._shift_ms = shard, name, shift_ms
        self._send_rows, self._report = send, report
        self.rows = 0

    async def copy(self, capture: RowCapture, ranges: list[tuple[str, bytes]]) -> None:
        """Copy all rows, and what changes meanwhile until little is left."""
        for family, prefix in ranges:
            await self._copy_range(capture, family, prefix)
        for _ in range(CATCH_UPS_MAX):
            if len(capture) <= SMALL_REST:
                break
            await self._send(capture.take())

    async def _copy_range(self, capture: RowCapture, family: str, prefix: bytes) -> None:
        """Copy the rows of a range up to the last one it has now. The capture has those that are added behind it."""
        store, lower, rows = self._shard.state.store, prefix, PAGE_ROWS_FIRST
        last = await asyncio.to_thread(store.last_item, store.family(family), prefix, after(prefix))
        if last is None:
            return
        upper = last[0] + b"\0"
        while page := await asyncio.to_thread(store.scan_items, store.family(family), lower, upper, rows):
            await self._send([RowChange(family, key, value) for key, value in page])
            if not prefix.startswith(QUEUE_ROW):  # names of queues come first: by them, an aborted copy is deleted
                await self._send(capture.take())
            size = sum(len(value) for _, value in page)
            rows = max(8, min(PART_ROWS, PART_BYTES * len(page) // (size + 1)))
            lower = page[-1][0] + b"\0"
            self._check(capture)

    def _check(self, capture: RowCapture) -> None:
        if capture.overrun:
            raise Unavailable("the tenant changes faster than its rows are copied", tenant=self._name)
        self._report(self.rows)

    async def finish(self, capture: RowCapture, ids: list[str]) -> None:
        """Copy the rest, the API keys and the tenant's own row, after the tenant was fenced."""
        await self._send(capture.take())
        store = self._shard.state.store
        names = [kind + id.encode() for id in ids for kind in (KEY_ROW, USE_ROW)]
        values = store.get_many(store.meta, names) if names else []
        last = [RowChange("meta", key, value) for key, value in zip(names, values, strict=True) if value is not None]
        await self._send(last, self._shard.state.catalog.moved[self._name].row, ids)

    async def _send(self, changes: list[RowChange], row: bytes = b"", key_ids: list[str] | None = None) -> None:
        """Send changes in parts. The tenant's own row goes with the last one."""
        part: list[RowChange] = []
        size = 0
        for change in changes:
            part.append(shifted(change, self._shift_ms))
            size += len(change.key) + len(change.value or b"")
            if len(part) == PART_ROWS or size >= PART_BYTES:
                self.rows += await self._send_rows(part, b"", [])
                part, size = [], 0
        if part or row:
            self.rows += await self._send_rows(part, row, key_ids or [])
