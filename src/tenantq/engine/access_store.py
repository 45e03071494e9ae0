"""API keys, grants and revoked tokens: kept in the meta family, cached here, changed only by rounds.

key/<key id>                              the key, its secret hashed
keyuse/<key id>                           when and from where it was used last
grant/<tenant id be32><principal>         what a principal may do in the tenant
review/<tenant id be32><principal>        when its grant was made or last reviewed
revoked/<tenant id be32><kind><what>      a token's id or a principal, until when its tokens are refused
contained/<tenant id be32><id>            what was done to a credential or the tenant because of an alert

The platform itself has tenant id 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from tenantq.domain import limits
from tenantq.domain.access import Grant, KeyUse, Principal, StoredKey
from tenantq.domain.containment import Containment
from tenantq.engine.catalog import Catalog
from tenantq.errors import Conflict, NotFound, QuotaExceeded
from tenantq.runtime.clock import Clock
from tenantq.store.interface import Batch, Store
from tenantq.store.keys import after, tenant_prefix
from tenantq.store.row_pages import rows_under

KEY_ROW: Final = b"key/"
USE_ROW: Final = b"keyuse/"
GRANT_ROW: Final = b"grant/"
REVIEW_ROW: Final = b"review/"
REVOKED_ROW: Final = b"revoked/"
CONTAINED_ROW: Final = b"contained/"
_TOKEN: Final = b"t"
_PRINCIPAL: Final = b"p"
_PAGE = 10_000
PLATFORM: Final = 0
_ADMINISTRATORS: Final = frozenset(("tenant-admin", "platform-admin"))


RowsUnder: TypeAlias = Callable[[bytes], Iterable[tuple[bytes, bytes]]]
"""Returns the rows whose keys start with a prefix."""


class ApiKeyRow(msgspec.Struct, frozen=True):
    """A stored key with the id of its tenant, which unlike the name is never reused."""

    tenant_id: int
    key: StoredKey


_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(ApiKeyRow).decode
_decode_use = msgspec.msgpack.Decoder(KeyUse).decode
_decode_grant = msgspec.msgpack.Decoder(Grant).decode
_decode_containment = msgspec.msgpack.Decoder(Containment).decode
_decode_time = msgspec.msgpack.Decoder(int).decode


class AccessStore:
    """The keys, grants and revocations of all tenants."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.version = 0  # grows with every change
        self._by_hash: dict[bytes, StoredKey] = {}
        self._keys: dict[int, dict[str, StoredKey]] = {}  # by tenant id and key id
        self._owners: dict[str, int] = {}  # key id: tenant id
        self._uses: dict[str, KeyUse] = {}
        self._grants: dict[str, dict[str, Grant]] = {}  # by tenant and principal
        self._tenants_of: dict[str, dict[str, None]] = {}
        self._reviewed: dict[tuple[str, str], int] = {}  # by tenant and principal
        self._revoked: dict[tuple[str | None, bytes, str], int] = {}
        self.containments: dict[str, tuple[int, Containment]] = {}  # by id, with the tenant's id
        self._limited: dict[tuple[str, str], Containment] = {}  # by tenant and principal

    # ---- reading ----

    def key(self, token_hash: bytes) -> StoredKey | None:
        return self._by_hash.get(token_hash)

    def keys(self, tenant_id: int) -> Mapping[str, StoredKey]:
        return self._keys.get(tenant_id, {})

    def use(self, key_id: str) -> KeyUse | None:
        """Return when and from where a key was last used, as far as recorded."""
        return self._uses.get(key_id)

    def uses(self) -> Mapping[str, KeyUse]:
        """Return the same for all keys."""
        return self._uses

    def grants(self, tenant: str, principal: str) -> tuple[Grant, ...]:
        """Return what is stored for a principal in a tenant."""
        held = self._grants.get(tenant)
        grant = held.get(principal) if held is not None else None
        return (grant,) if grant is not None else ()

    def grants_in(self, tenant: str) -> Mapping[str, Grant]:
        return self._grants.get(tenant, {})

    def reviewed_at(self, tenant: str, principal: str) -> int | None:
        """Return when a grant was made or last reviewed; None for one of an earlier version that never was."""
        return self._reviewed.get((tenant, principal))

    def tenants_of(self, principal: str) -> Collection[str]:
        return self._tenants_of.get(principal, {})

    def token_revoked(self, tenant: str | None, token_id: str | None, principal: str, now_ms: int) -> bool:
        if not self._revoked:
            return False
        if token_id is not None and self._revoked.get((tenant, _TOKEN, token_id), 0) > now_ms:
            return True
        return self._revoked.get((tenant, _PRINCIPAL, principal), 0) > now_ms

    def administrators(self, tenant_id: int, now_ms: int) -> set[str]:
        """Return the IDs of the valid keys of a tenant's, or the platform's, administrators."""
        return {
            key.id
            for key in self.keys(tenant_id).values()
            if key.grant.role in _ADMINISTRATORS and not key.is_over(now_ms) and not key.is_suspended(now_ms)
        }

    def limit_of(self, principal: Principal, clock: Clock) -> int | None:
        """Return the operations per second that containment leaves a principal; None: it is not limited."""
        found = self._limited.get((principal.tenant or "", principal.id)) if self._limited else None
        return found.ops_per_sec if found is not None and found.until > clock.wall_ms() else None

    # ---- changing, into a round's batch ----

    def put_key(self, batch: Batch, tenant_id: int, key: StoredKey) -> None:
        held = self._keys.setdefault(tenant_id, {})
        if key.token_hash in self._by_hash:
            raise Conflict("this token is already a key")
        if len(held) >= limits.KEYS_MAX:
            self._drop_ended_keys(batch, held, key.created_at)
        if len(held) >= limits.KEYS_MAX:
            raise QuotaExceeded(
                f"keys: a tenant has at most {limits.KEYS_MAX}; revoke some", limit=limits.KEYS_MAX, current=len(held)
            )
        self._save_key(batch, tenant_id, key)

    def _drop_ended_keys(self, batch: Batch, held: dict[str, StoredKey], now_ms: int) -> None:
        """Drop a tenant's revoked and expired keys to make room. The journal still has them."""
        for key in list(held.values()):
            if key.is_over(now_ms):
                del held[key.id]
                self._drop_key(batch, key)

    def _drop_key(self, batch: Batch, key: StoredKey) -> None:
        del self._by_hash[key.token_hash], self._owners[key.id]
        self._uses.pop(key.id, None)
        batch.delete(KEY_ROW + key.id.encode(), self._store.meta.handle)
        batch.delete(USE_ROW + key.id.encode(), self._store.meta.handle)

    def revoke_key(self, batch: Batch, tenant_id: int, key_id: str, now_ms: int) -> StoredKey:
        """Revoke a key. It stays listed while there is room, and its id is never reused."""
        key = self.keys(tenant_id).get(key_id)
        if key is None:
            raise NotFound("the key does not exist")
        if key.revoked_at is None:
            key = replace(key, revoked_at=now_ms)
            self._save_key(batch, tenant_id, key)
        return key

    def _save_key(self, batch: Batch, tenant_id: int, key: StoredKey) -> None:
        batch.put(KEY_ROW + key.id.encode(), _encode(ApiKeyRow(tenant_id, key)), self._store.meta.handle)
        self._keys.setdefault(tenant_id, {})[key.id] = key
        self._by_hash[key.token_hash] = key
        self._owners[key.id] = tenant_id
        self.version += 1

    def note_use(self, batch: Batch, key_id: str, use: KeyUse) -> None:
        """Store when and from where a key was used, if it still exists."""
        if key_id not in self._owners:
            return
        batch.put(USE_ROW + key_id.encode(), _encode(use), self._store.meta.handle)
        self._uses[key_id] = use

    def put_grant(self, batch: Batch, tenant_id: int, tenant: str, principal: str, grant: Grant, now_ms: int) -> None:
        """Store a principal's grant in a tenant, replacing any earlier one. It counts as reviewed."""
        held = self._grants.setdefault(tenant, {})
        if principal not in held and len(held) >= limits.GRANTS_MAX:
            most = limits.GRANTS_MAX
            raise QuotaExceeded(f"grants: a tenant has at most {most}; delete some", limit=most, current=len(held))
        batch.put(GRANT_ROW + _grant_key(tenant_id, principal), _encode(grant), self._store.meta.handle)
        held[principal] = grant
        self._tenants_of.setdefault(principal, {})[tenant] = None
        self.review_grant(batch, tenant_id, tenant, principal, now_ms)
        self.version += 1

    def review_grant(self, batch: Batch, tenant_id: int, tenant: str, principal: str, now_ms: int) -> Grant:
        """Store that a grant was reviewed, and return it. Raises NotFound."""
        grant = self._grants.get(tenant, {}).get(principal)
        if grant is None:
            raise NotFound("the grant does not exist")
        batch.put(REVIEW_ROW + _grant_key(tenant_id, principal), _encode(now_ms), self._store.meta.handle)
        self._reviewed[tenant, principal] = now_ms
        return grant

    def drop_grant(self, batch: Batch, tenant_id: int, tenant: str, principal: str) -> None:
        """Delete a principal's grant in a tenant."""
        if self._grants.get(tenant, {}).pop(principal, None) is None:
            raise NotFound("the grant does not exist")
        for row in (GRANT_ROW, REVIEW_ROW):
            batch.delete(row + _grant_key(tenant_id, principal), self._store.meta.handle)
        self._forget_grant(tenant, principal)
        self.version += 1

    def _forget_grant(self, tenant: str, principal: str) -> None:
        self._reviewed.pop((tenant, principal), None)
        tenants = self._tenants_of[principal]
        del tenants[tenant]
        if not tenants:
            del self._tenants_of[principal]

    def revoke_token(
        self, batch: Batch, tenant_id: int, tenant: str | None, token_id: str | None, principal: str | None, until: int
    ) -> None:
        """Revoke a token by its id, or all of a principal's, until they expire; never for shorter than before."""
        held = sum(1 for one in self._revoked if one[0] == tenant)
        if held >= limits.REVOCATIONS_MAX:
            raise QuotaExceeded(
                f"revocations: a tenant has at most {limits.REVOCATIONS_MAX} at a time; wait until some tokens have expired",
                limit=limits.REVOCATIONS_MAX,
                current=held,
            )
        for kind, what in ((_TOKEN, token_id), (_PRINCIPAL, principal)):
            if what is not None:
                end = max(until, self._revoked.get((tenant, kind, what), 0))
                self._revoked[tenant, kind, what] = end
                key = REVOKED_ROW + tenant_prefix(tenant_id) + kind + what.encode()
                batch.put(key, _encode(end), self._store.meta.handle)
        self.version += 1

    def put_containment(self, batch: Batch, tenant_id: int, one: Containment) -> None:
        """Store a containment, and apply it to its key or principal unless it is a dry run."""
        held = sum(1 for owner, _ in self.containments.values() if owner == tenant_id)
        if held >= limits.CONTAINMENTS_MAX:
            most = limits.CONTAINMENTS_MAX
            raise QuotaExceeded(f"containments: a tenant has at most {most} at a time", limit=most, current=held)
        batch.put(_containment_key(tenant_id, one.id), _encode(one), self._store.meta.handle)
        self._add_containment(tenant_id, one)
        if one.action == "suspend_key" and not one.dry_run:
            self._save_key(batch, tenant_id, replace(self._keys[tenant_id][one.key_id], suspended_until=one.until))

    def drop_containment(self, batch: Batch, id: str) -> None:
        """Delete a containment, and end what it did to its key or principal."""
        tenant_id, one = self.containments.pop(id)
        batch.delete(_containment_key(tenant_id, id), self._store.meta.handle)
        if one.dry_run:
            return
        if one.action == "limit_principal":
            del self._limited[one.tenant, one.principal]
        key = self.keys(tenant_id).get(one.key_id)
        if one.action == "suspend_key" and key is not None:
            self._save_key(batch, tenant_id, replace(key, suspended_until=None))

    def _add_containment(self, tenant_id: int, one: Containment) -> None:
        self.containments[one.id] = (tenant_id, one)
        if one.action == "limit_principal" and not one.dry_run:
            self._limited[one.tenant, one.principal] = one

    def collect(self, batch: Batch, catalog: Catalog, now_ms: int) -> int:
        """Delete revocations whose tokens have expired; return how many."""
        over = [one for one, until in self._revoked.items() if until <= now_ms]
        for one in over:
            tenant, kind, what = one
            del self._revoked[one]
            owner = catalog.tenants.get(tenant) if tenant is not None else None
            tenant_id = owner.id if owner is not None else PLATFORM
            batch.delete(REVOKED_ROW + tenant_prefix(tenant_id) + kind + what.encode(), self._store.meta.handle)
        return len(over)

    def drop_tenant(self, batch: Batch, tenant_id: int, tenant: str) -> None:
        """Delete everything about a tenant."""
        meta = self._store.meta.handle
        for key in self._keys.pop(tenant_id, {}).values():
            self._drop_key(batch, key)
        for principal in self._grants.pop(tenant, {}):
            self._forget_grant(tenant, principal)
        for one in [one for one in self._revoked if one[0] == tenant]:
            del self._revoked[one]
        for id in [id for id, (owner, _) in self.containments.items() if owner == tenant_id]:
            _, ended = self.containments.pop(id)
            self._limited.pop((ended.tenant, ended.principal), None)
        for row in (GRANT_ROW, REVIEW_ROW, REVOKED_ROW, CONTAINED_ROW):
            batch.delete_range(row + tenant_prefix(tenant_id), row + after(tenant_prefix(tenant_id)), meta)
        self.version += 1

    # ---- loading ----

    def load(self, catalog: Catalog) -> None:
        """Read everything from the store. Keys of tenants that are leaving stay valid until they are served elsewhere."""
        names: dict[int, str | None] = {tenant.id: tenant.name for tenant in catalog.tenants.values()}
        names[PLATFORM] = None
        for _, value in self._rows(KEY_ROW):
            self._add_key(value)
        for key, value in self._rows(USE_ROW):
            self._uses[key[len(USE_ROW) :].decode()] = _decode_use(value)
        self._load_rows(names, b"", self._rows)

    def load_tenant(self, tenant_id: int, tenant: str, key_ids: Sequence[str], rows: RowsUnder | None = None) -> None:
        """Read the rows of one tenant, and of its keys; with ``rows``, those that will be in the store."""
        store = self._store
        for id in key_ids:
            key, use = store.get_many(store.meta, [KEY_ROW + id.encode(), USE_ROW + id.encode()])
            if key is not None:
                self._add_key(key)
            if use is not None:
                self._uses[id] = _decode_use(use)
        self._load_rows({tenant_id: tenant}, tenant_prefix(tenant_id), rows or self._rows)
        self.version += 1

    def _add_key(self, value: bytes) -> None:
        row = _decode_key(value)
        self._keys.setdefault(row.tenant_id, {})[row.key.id] = row.key
        self._by_hash[row.key.token_hash] = row.key
        self._owners[row.key.id] = row.tenant_id

    def _load_rows(self, names: Mapping[int, str | None], prefix: bytes, rows: RowsUnder) -> None:
        for key, value in rows(GRANT_ROW + prefix):
            tenant, principal = names.get(_tenant_id(key, GRANT_ROW)), key[len(GRANT_ROW) + 4 :].decode()
            if tenant is not None:
                self._grants.setdefault(tenant, {})[principal] = _decode_grant(value)
                self._tenants_of.setdefault(principal, {})[tenant] = None
        for key, value in rows(REVIEW_ROW + prefix):
            tenant = names.get(_tenant_id(key, REVIEW_ROW))
            if tenant is not None:
                self._reviewed[tenant, key[len(REVIEW_ROW) + 4 :].decode()] = _decode_time(value)
        for key, value in rows(REVOKED_ROW + prefix):
            tenant_id, rest = _tenant_id(key, REVOKED_ROW), key[len(REVOKED_ROW) + 4 :]
            if tenant_id in names:
                self._revoked[names[tenant_id], rest[:1], rest[1:].decode()] = _decode_time(value)
        for key, value in rows(CONTAINED_ROW + prefix):
            if (tenant_id := _tenant_id(key, CONTAINED_ROW)) in names:
                self._add_containment(tenant_id, _decode_containment(value))

    def _rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return rows_under(self._store, self._store.meta, prefix, _PAGE)


def _grant_key(tenant_id: int, principal: str) -> bytes:
    return tenant_prefix(tenant_id) + principal.encode()


def _tenant_id(key: bytes, row: bytes) -> int:
    return int.from_bytes(key[len(row) : len(row) + 4])


def _containment_key(tenant_id: int, id: str) -> bytes:
    return CONTAINED_ROW + tenant_prefix(tenant_id) + id.encode()
