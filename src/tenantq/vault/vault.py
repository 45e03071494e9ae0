"""The vault: what the service asks to seal, open and digest what belongs to encrypted tenants.

sealer = vault.sealer(tenant_id, policy) or await vault.ready(tenant_id, policy)
blob = sealer.seal("orders", id, "body", b"...")

reader = vault.reader(tenant_id)
await reader.load([blob])
reader.open("orders", id, "body", blob)
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.errors import Erased, KmsError, KmsUnavailable, SealBroken, TenantqError
from tenantq.kms.interface import KeyHealth, KeyRef
from tenantq.runtime.randomness import id_text
from tenantq.vault.data_keys import SECRET, Means, TenantKeys
from tenantq.vault.envelope import FORMAT, NONCE_BYTES, OVERHEAD_BYTES, DataKey, Kind, TenantSecret, key_number
from tenantq.vault.key_cache import KeyCache
from tenantq.vault.settings import KeyPolicy, VaultSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

    from tenantq.kms.interface import Kms
    from tenantq.runtime.clock import Clock
    from tenantq.vault.key_store import DataKeyStore

_CLOSED: Final = "The vault is closed."


class VaultHealth(msgspec.Struct, frozen=True):
    """The state of the keys."""

    keys: list[KeyHealth]  # of every key management, each key used so far
    tenants: int  # that had keys in memory since the start
    cached_keys: int  # in memory now

    @property
    def summary(self) -> str:
        """``ok``, or how many keys are in which trouble; without their names."""
        states = Counter(key.state for key in self.keys if key.state not in {"ok", "unknown"})
        return ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "ok"

    @property
    def ok(self) -> bool:
        """Whether no key is in trouble."""
        return all(key.state in {"ok", "unknown"} for key in self.keys)


class Sealer:
    """Seals and opens for one tenant, without waiting. Keys beyond their age, or destroyed, are refused at once.

    ``seal`` and ``digest`` need ``Vault.ready`` first; ``open`` needs ``load``.
    """

    __slots__ = ("_held", "_keys", "_now", "_random_bytes")

    def __init__(self, keys: TenantKeys, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        self._keys = keys
        self._held = keys.held
        self._now = clock.monotonic_ms
        self._random_bytes = random_bytes

    def __repr__(self) -> str:
        return f"Sealer(tenant {self._keys.tenant_id})"

    def seal(self, queue: str, id: bytes, kind: Kind, plaintext: bytes) -> bytes:
        """Return the record of ``plaintext``, which opens only for this tenant, queue, message id and kind."""
        keys = self._keys
        key = self._held.get(keys.current)
        if not isinstance(key, DataKey) or keys.room <= 0 or self._now() >= key.expires_at:
            raise self._not_at_hand()
        keys.room -= 1
        return key.seal(queue, id, kind, plaintext, self._random_bytes(NONCE_BYTES))

    def open(self, queue: str, id: bytes, kind: Kind, blob: bytes) -> bytes:
        """Return the plaintext of a record; ``queue`` is the one it was sealed for. SealBroken, Erased, KmsUnavailable."""
        number = key_number(blob)
        key = self._held.get(number)
        if not isinstance(key, DataKey) or self._now() >= key.expires_at:
            if number == SECRET or number in self._keys.broken:
                raise SealBroken(queue=queue, id=id_text(id))
            raise self._not_at_hand()
        return key.open(queue, id, kind, blob)

    def seal_bodies(self, queue: str, ids: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
        """Return the records of many bodies: what ``seal`` does for each, in fewer steps."""
        keys, count = self._keys, len(bodies)
        key = self._held.get(keys.current)
        if not isinstance(key, DataKey) or keys.room < count or self._now() >= key.expires_at:
            raise self._not_at_hand()
        keys.room -= count
        return key.seal_bodies(queue, ids, bodies, self._random_bytes(NONCE_BYTES * count))

    def open_bodies(self, queue: str, ids: Sequence[bytes], blobs: Sequence[bytes]) -> list[bytes | SealBroken]:
        """Return the plaintext of many bodies, in place of one that does not open the SealBroken. Erased, KmsUnavailable."""
        if len({blob[:5] for blob in blobs}) == 1:
            key = self._held.get(int.from_bytes(blobs[0][1:5]))
            if isinstance(key, DataKey) and self._now() < key.expires_at:
                return key.open_bodies(queue, ids, blobs)
        return [self._open_or_broken(queue, id, blob) for id, blob in zip(ids, blobs, strict=True)]

    def _open_or_broken(self, queue: str, id: bytes, blob: bytes) -> bytes | SealBroken:
        try:
            return self.open(queue, id, "body", blob)
        except SealBroken as error:
            return error

    @property
    def can_digest(self) -> bool:
        """Whether the tenant's secret is in memory, so that ``digest`` works."""
        return self._keys.is_fresh(SECRET)

    def digest(self, plaintext: bytes) -> bytes:
        """Return 16 bytes that are the same for the same plaintext of this tenant, and tell nothing of it otherwise."""
        secret = self._held.get(SECRET)
        if not isinstance(secret, TenantSecret) or self._now() >= secret.expires_at:
            raise self._not_at_hand()
        return secret.digest(plaintext)

    async def load(self, blobs: Iterable[bytes]) -> None:
        """Have the data keys of these records at hand. What is no record is left to ``open``; KmsUnavailable, KmsError, Erased."""
        heads = {blob[:5] for blob in blobs if len(blob) >= OVERHEAD_BYTES and blob[0] == FORMAT}
        numbers = {int.from_bytes(head[1:]) for head in heads}
        numbers.discard(SECRET)
        await self._keys.load(numbers)

    async def load_secret(self) -> None:
        """Have the tenant's secret at hand, for ``digest``; KmsUnavailable, KmsError, Erased."""
        await self._keys.load({SECRET})

    def _not_at_hand(self) -> TenantqError:
        return Erased() if self._keys.erased else KmsUnavailable("The tenant's data keys are not at hand. Try again.")


class Vault:
    """Every encrypted tenant's keys, in one server. Use it on one event loop only."""

    def __init__(
        self,
        book: DataKeyStore,
        kms_by_name: Mapping[str, Kms],
        clock: Clock,
        random_bytes: Callable[[int], bytes] = os.urandom,
        settings: VaultSettings | None = None,
    ) -> None:
        """``random_bytes`` has to be cryptographically strong: data keys and nonces come from it."""
        settings = settings or VaultSettings()
        self._cache = KeyCache(clock, age_max_ms=settings.key_age_max_ms, keys_max=settings.cached_keys_max)
        self._means = Means(book, kms_by_name, clock, random_bytes, settings, self._cache, self._spawn)
        self._tenants: dict[int, TenantKeys] = {}
        self._sealers: dict[int, Sealer] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"Vault({len(self._tenants)} tenants, {len(self._cache)} keys in memory)"

    def sealer(self, tenant_id: int, policy: KeyPolicy, uses: int = 1) -> Sealer | None:
        """Return the tenant's sealer if ``uses`` records can be sealed at once; None: ask ``ready``."""
        keys = self._tenants.get(tenant_id)
        return self._sealers[tenant_id] if keys is not None and keys.is_calm(policy, uses) else None

    async def ready(self, tenant_id: int, policy: KeyPolicy, uses: int = 1) -> Sealer:
        """Return the tenant's sealer when ``uses`` records can be sealed, before the next await; KmsUnavailable, KmsError, Erased.

        The first call makes the tenant's keys. A rotation that is due goes on beside, with the old key at work meanwhile.
        """
        keys = self._of(tenant_id)
        await keys.prepare(policy, uses)
        return self._sealers[tenant_id]

    def reader(self, tenant_id: int) -> Sealer:
        """Return the tenant's sealer for opening only, also where encryption is switched off by now. Asks nobody."""
        self._of(tenant_id)
        return self._sealers[tenant_id]

    async def rotate(self, tenant_id: int) -> int:
        """Make a new data key now and return its number. What older ones sealed stays readable."""
        return await self._of(tenant_id).rotate()

    async def rewrap(self, tenant_id: int, ref: KeyRef) -> int:
        """Wrap all of the tenant's keys anew by ``ref``, and return how many.

        For a change to another key or provider, or after the key management has rotated the key itself. What wrapped them so far
        has to work until then. Where it was broken off it may be repeated.
        """
        self.check_key(ref)
        return await self._of(tenant_id).rewrap(ref)

    async def shred(self, tenant_id: int) -> int:
        """Destroy the tenant's keys, and return how many there were. From the first moment on, nothing of it opens any more."""
        return await self._of(tenant_id).shred()

    def forget(self, tenant_id: int) -> None:
        """Let go of everything about a tenant that is gone."""
        self._cache.forget(tenant_id)
        self._tenants.pop(tenant_id, None)
        self._sealers.pop(tenant_id, None)

    def check_key(self, ref: KeyRef) -> None:
        """Raise KmsError if its provider is not configured, Invalid if it cannot name a key there. Asks nobody."""
        kms = self._means.kms_by_name.get(ref.provider)
        if kms is None:
            raise KmsError(f"This server has no key management {ref.provider!r}. Configure it.")
        kms.check_key(ref.key)

    async def check(self, ref: KeyRef) -> KeyHealth:
        """Try a key, wrapping and unwrapping, and return how it went."""
        self.check_key(ref)
        return await self._means.kms_by_name[ref.provider].check(ref.key)

    def health(self) -> VaultHealth:
        """Return the health of every key used so far, and what is in memory."""
        keys = [key for kms in self._means.kms_by_name.values() for key in kms.health()]
        return VaultHealth(keys, len(self._tenants), len(self._cache))

    async def close(self) -> None:
        """End what goes on beside, and forget every key. The key management systems stay open."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._cache.clear()

    def _of(self, tenant_id: int) -> TenantKeys:
        if self._closed:
            raise KmsUnavailable(_CLOSED)
        keys = self._tenants.get(tenant_id)
        if keys is None:
            keys = self._tenants[tenant_id] = TenantKeys(tenant_id, self._means)
            self._sealers[tenant_id] = Sealer(keys, self._means.clock, self._means.random_bytes)
        return keys

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        if self._closed:
            work.close()
            raise KmsUnavailable(_CLOSED)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # it was told to who waits, if anybody does; nobody else needs to hear of it
