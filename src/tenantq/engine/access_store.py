"""API keys, grants and revoked tokens: kept in the meta family, cached here, changed only by rounds.

key/<key id>                              the key, its secret hashed
keyuse/<key id>                           when and from where it was used last
grant/<tenant id be32><principal>         what a principal may do in the tenant
revoked/<tenant id be32><kind><what>      a token's id or a principal, until when its tokens are refused

The platform itself has tenant id 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec

from tenantq.domain import limits
from tenantq.domain.access import Grant, KeyUse, StoredKey
from tenantq.engine.catalog import Catalog
from tenantq.errors import Conflict, NotFound, QuotaExceeded
from tenantq.store.interface import Batch, Store
from tenantq.store.keys import after, tenant_prefix
from tenantq.store.row_pages import rows_under

KEY_ROW: Final = b"key/"
USE_ROW: Final = b"keyuse/"
GRANT_ROW: Final = b"grant/"
REVOKED_ROW: Final = b"revoked/"
_TOKEN: Final = b"t"
_PRINCIPAL: Final = b"p"
_PAGE = 10_000
PLATFORM: Final = 0


class ApiKeyRow(msgspec.Struct, frozen=True):
    """A stored key with the id of its tenant, which unlike the name is never reused."""

    tenant_id: int
    key: StoredKey


_encode = msgspec.msgpack.Encoder().encode
_decode_key = msgspec.msgpack.Decoder(ApiKeyRow).decode
_decode_use = msgspec.msgpack.Decoder(KeyUse).decode
_decode_grant = msgspec.msgpack.Decoder(Grant).decode
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
        self._revoked: dict[tuple[str | None, bytes, str], int] = {}

    # ---- reading ----

    def key(self, token_hash: bytes) -> StoredKey | None:
        """Return the key whose token has this hash, revoked or not."""
        return self._by_hash.get(token_hash)

    def key_of_id(self, key_id: str) -> StoredKey | None:
        """Return the key of this id, revoked or not."""
        owner = self._owners.get(key_id)
        return self._keys[owner].get(key_id) if owner is not None else None

    def keys(self, tenant_id: int) -> Mapping[str, StoredKey]:
        """Return a tenant's keys by id."""
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
        """Return all stored grants of a tenant by principal."""
        return self._grants.get(tenant, {})

    def tenants_of(self, principal: str) -> Collection[str]:
        """Return the tenants in which something is stored for a principal."""
        return self._tenants_of.get(principal, {})

    def token_revoked(self, tenant: str | None, token_id: str | None, principal: str, now_ms: int) -> bool:
        """Return whether a token's id, or all tokens of its principal, are revoked in its tenant."""
        if not self._revoked:
            return False
        if token_id is not None and self._revoked.get((tenant, _TOKEN, token_id), 0) > now_ms:
            return True
        return self._revoked.get((tenant, _PRINCIPAL, principal), 0) > now_ms

    # ---- changing, into a round's batch ----

    def put_key(self, batch: Batch, tenant_id: int, key: StoredKey) -> None:
        """Store a new key."""
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
            expires_at = key.grant.expires_at
            if key.revoked_at is not None or (expires_at is not None and expires_at <= now_ms):
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
            key = msgspec.structs.replace(key, revoked_at=now_ms)
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

    def put_grant(self, batch: Batch, tenant_id: int, tenant: str, principal: str, grant: Grant) -> None:
        """Store a principal's grant in a tenant, replacing any earlier one."""
        held = self._grants.setdefault(tenant, {})
        if principal not in held and len(held) >= limits.GRANTS_MAX:
            most = limits.GRANTS_MAX
            raise QuotaExceeded(f"grants: a tenant has at most {most}; delete some", limit=most, current=len(held))
        batch.put(_grant_key(tenant_id, principal), _encode(grant), self._store.meta.handle)
        held[principal] = grant
        self._tenants_of.setdefault(principal, {})[tenant] = None
        self.version += 1

    def drop_grant(self, batch: Batch, tenant_id: int, tenant: str, principal: str) -> None:
        """Delete a principal's grant in a tenant."""
        if self._grants.get(tenant, {}).pop(principal, None) is None:
            raise NotFound("the grant does not exist")
        batch.delete(_grant_key(tenant_id, principal), self._store.meta.handle)
        self._forget_grant(tenant, principal)
        self.version += 1

    def _forget_grant(self, tenant: str, principal: str) -> None:
        tenants = self._tenants_of[principal]
        del tenants[tenant]
        if not tenants:
            del self._tenants_of[principal]

    def revoke_token(
        self,
        batch: Batch,
        tenant_id: int,
        tenant: str | None,
        token_id: str | None,
        principal: str | None,
        until: int,
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
        for row in (GRANT_ROW, REVOKED_ROW):
            batch.delete_range(row + tenant_prefix(tenant_id), row + after(tenant_prefix(tenant_id)), meta)
        self.version += 1

    # ---- loading ----

    def load(self, catalog: Catalog) -> None:
        """Read everything from the store."""
        names: dict[int, str | None] = {tenant.id: tenant.name for tenant in catalog.tenants.values()}
        names[PLATFORM] = None
        for _, value in self._rows(KEY_ROW):
            row = _decode_key(value)
            self._keys.setdefault(row.tenant_id, {})[row.key.id] = row.key
            self._by_hash[row.key.token_hash] = row.key
            self._owners[row.key.id] = row.tenant_id
        for key, value in self._rows(USE_ROW):
            self._uses[key[len(USE_ROW) :].decode()] = _decode_use(value)
        for key, value in self._rows(GRANT_ROW):
            tenant, principal = names[_tenant_id(key, GRANT_ROW)], key[len(GRANT_ROW) + 4 :].decode()
            if tenant is not None:
                self._grants.setdefault(tenant, {})[principal] = _decode_grant(value)
                self._tenants_of.setdefault(principal, {})[tenant] = None
        for key, value in self._rows(REVOKED_ROW):
            rest = key[len(REVOKED_ROW) + 4 :]
            self._revoked[names[_tenant_id(key, REVOKED_ROW)], rest[:1], rest[1:].decode()] = _decode_time(value)

    def _rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return rows_under(self._store, self._store.meta, prefix, _PAGE)


def _grant_key(tenant_id: int, principal: str) -> bytes:
    return GRANT_ROW + tenant_prefix(tenant_id) + principal.encode()


def _tenant_id(key: bytes, row: bytes) -> int:
    return int.from_bytes(key[len(row) : len(row) + 4])
