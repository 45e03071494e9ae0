"""Compares a tenant's counted hours and days with the adds in the journal."""

import msgspec

from tenantq.doctor.report import FindingLog
from tenantq.domain.limits import DAY_MS, HOUR_MS
from tenantq.engine.catalog import TENANT_ROW, USAGE_ROW, TenantRow, tenants_in_transit
from tenantq.engine.usage import Usage, Window, WindowsRow
from tenantq.journal.record import Record
from tenantq.store.interface import StoreReader
from tenantq.store.row_pages import rows_under

_ID_BYTES = 16
_decode_tenant = msgspec.msgpack.Decoder(TenantRow).decode
_decode_windows = msgspec.msgpack.Decoder(WindowsRow).decode


class UsageRecount:
    """The messages added per tenant, by the journal."""

    def __init__(self, *, complete: bool) -> None:
        self._complete = complete
        self._known_from = 0 if complete else None  # wall clock; earlier windows are partly trimmed
        self._tenants: dict[str, Usage] = {}
        self._added: dict[str, dict[str, tuple[int, int]]] = {}  # by tenant and kind: the last window, and adds in it

    def count(self, record: Record) -> None:
        """Count the messages that a record added. Records must come in order."""
        if self._known_from is None:
            self._known_from = record.ts
        for entry in record.entries:
            if entry.op == "create_tenant" and entry.outcome == "ok":
                self._tenants.pop(entry.tenant, None)  # an earlier tenant may have had the same name
                self._added.pop(entry.tenant, None)
            elif entry.op == "add" and entry.outcome == "ok":
                usage = self._tenants.setdefault(entry.tenant, Usage())
                count, added = len(entry.ids) // _ID_BYTES, self._added.setdefault(entry.tenant, {})
                usage.added(count, record.ts)
                for what, window in (("hour", usage.hour), ("day", usage.day)):
                    number, before = added.get(what, (window.number, 0))
                    added[what] = window.number, count + (before if number == window.number else 0)

    def compare(self, store: StoreReader, log: FindingLog) -> None:
        """Record every stored window that differs, as far as the journal covers it."""
        rows = {
            key[len(TENANT_ROW) :]: _decode_tenant(value) for key, value in rows_under(store, store.meta, TENANT_ROW)
        }
        names = {id: row.name for id, row in rows.items()}
        transit = tenants_in_transit(store)
        stored: dict[str, WindowsRow] = {}
        for key, value in rows_under(store, store.meta, USAGE_ROW):
            name = names.get(key[len(USAGE_ROW) :])
            if int.from_bytes(key[len(USAGE_ROW) :]) in transit:
                continue
            if name is None:
                log.found("orphan", "Usage counters do not belong to any tenant.", tenant=key.hex())
            else:
                stored[name] = _decode_windows(value)
        for name in (row.name for row in rows.values() if not row.earlier):  # others were counted on several shards
            self._compare_one(name, stored.get(name, WindowsRow(0, 0, 0, 0)), log)

    def _compare_one(self, tenant: str, kept: WindowsRow, log: FindingLog) -> None:
        counted = self._tenants.get(tenant, Usage())
        known_from = self._known_from or 0
        for what, length_ms, number, messages, ours in (
            ("hour", HOUR_MS, kept.hour, kept.hour_messages, counted.hour),
            ("day", DAY_MS, kept.day, kept.day_messages, counted.day),
        ):
            least = self._added.get(tenant, {}).get(what, (0, 0))[1]
            if number * length_ms >= known_from and not self._is_explained(number, messages, ours, least):
                text = f"{messages} messages are counted for {what} {number}; "
                text += f"the journal has {ours.messages} for {ours.number}."
                log.found("usage", text, tenant=tenant)

    def _is_explained(self, number: int, messages: int, ours: Window, least: int) -> bool:
        """Return whether the journal explains a stored window that has ``least`` adds of its own.

        When a clock is set far back, the window follows it with its count, or starts empty if no message was added before the next
        window began. The journal has adds only, so both are right. A trimmed journal may lack adds that an earlier jump counted here.
        """
        if self._complete:
            return number == ours.number and least <= messages <= ours.messages
        return number >= ours.number and messages >= least
