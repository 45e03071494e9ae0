"""A tenant's counted hours and days, compared with the messages that the journal says were added."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tenantq.doctor.pages import pages_of_items
from tenantq.domain.quotas import DAY_MS, HOUR_MS
from tenantq.engine.catalog import TENANT_ROW, USAGE_ROW, TenantRow
from tenantq.engine.usage import Usage, WindowsRow
from tenantq.store.keys import after

if TYPE_CHECKING:
    from tenantq.doctor.report import Notes
    from tenantq.journal.record import Record
    from tenantq.store.interface import Store

_ID_BYTES = 16
_decode_tenant = msgspec.msgpack.Decoder(TenantRow).decode
_decode_windows = msgspec.msgpack.Decoder(WindowsRow).decode


class UsageRecount:
    """What the journal's records add up to, tenant by tenant."""

    def __init__(self, *, whole: bool) -> None:
        self._known_from = 0 if whole else None  # wall clock; windows that begin earlier were trimmed in part
        self._tenants: dict[str, Usage] = {}

    def pass_by(self, record: Record) -> None:
        """Count the messages that a record says were added. Records come in order."""
        if self._known_from is None:
            self._known_from = record.ts
        for entry in record.entries:
            if entry.op == "create_tenant" and entry.outcome == "ok":
                self._tenants.pop(entry.tenant, None)  # another one of the same name may have been there
            elif entry.op == "add" and entry.outcome == "ok":
                usage = self._tenants.setdefault(entry.tenant, Usage())
                usage.added(len(entry.ids) // _ID_BYTES, record.ts)

    def compare(self, store: Store, notes: Notes) -> None:
        """Write down every stored window that differs, as far as the journal still covers it."""
        names = {
            key[len(TENANT_ROW) :]: _decode_tenant(value).name
            for page in pages_of_items(store, store.meta, TENANT_ROW, after(TENANT_ROW))
            for key, value in page
        }
        stored: dict[str, WindowsRow] = {}
        for page in pages_of_items(store, store.meta, USAGE_ROW, after(USAGE_ROW)):
            for key, value in page:
                name = names.get(key[len(USAGE_ROW) :])
                if name is None:
                    notes.found("orphan", "Counted hours and days belong to no tenant.", tenant=key.hex())
                else:
                    stored[name] = _decode_windows(value)
        for name in names.values():
            self._compare_one(name, stored.get(name, WindowsRow(0, 0, 0, 0)), notes)

    def _compare_one(self, tenant: str, kept: WindowsRow, notes: Notes) -> None:
        counted = self._tenants.get(tenant, Usage())
        known_from = self._known_from or 0
        for what, length_ms, theirs, ours in (
            ("hour", HOUR_MS, (kept.hour, kept.hour_messages), (counted.hour, counted.hour_messages)),
            ("day", DAY_MS, (kept.day, kept.day_messages), (counted.day, counted.day_messages)),
        ):
            if theirs[0] * length_ms >= known_from and theirs != ours:
                notes.found(
                    "usage",
                    f"{theirs[1]} messages are counted for {what} {theirs[0]}; the journal has {ours[1]} for {ours[0]}.",
                    tenant=tenant,
                )
