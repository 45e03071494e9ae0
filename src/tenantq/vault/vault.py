"""The vault: encrypts, decrypts and digests the data of encrypted tenants.

cipher = vault.cipher(tenant_id, policy) or await vault.ready(tenant_id, policy)
blob = cipher.encrypt("orders", id, "body", b"...")

reader = vault.reader(tenant_id)
await reader.load([blob])
reader.decrypt("orders", id, "body", blob)
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from tenantq.errors import DecryptionFailed, Erased, KmsUnavailable, TenantqError
from tenantq.kms.interface import KeyHealth, KeyRef, Kms
from tenantq.runtime.clock import Clock
from tenantq.runtime.randomness import id_text
from tenantq.vault.data_keys import SECRET, TenantKeys, VaultContext
from tenantq.vault.envelope import FORMAT, NONCE_BYTES, OVERHEAD_BYTES, DataKey, Field, TenantSecret, key_number
from tenantq.vault.key_cache import KeyCache
from tenantq.vault.settings import KeyPolicy, VaultSettings
from tenantq.vault.wrapped_key import DataKeyStore

_CLOSED: Final = "The vault is closed."


class VaultHealth(msgspec.Struct, frozen=True):
    """The state of the keys."""

    keys: list[KeyHealth]  # every key used so far, of all key management systems
    tenants: int  # that used keys since the start
    cached_keys: int  # in memory now

    @property
    def summary(self) -> str:
        """``ok``, or the number of keys per failed state."""
        states = Counter(key.state for key in self.keys if key.state not in {"ok", "unknown"})
        return ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "ok"

    @property
    def ok(self) -> bool:
        """Whether all keys work."""
        return all(key.state in {"ok", "unknown"} for key in self.keys)


class TenantCipher:
    """Encrypts and decrypts for one tenant without waiting. Expired and destroyed keys are refused at once.

    ``encrypt`` and ``digest`` need ``Vault.ready`` first; ``decrypt`` needs ``load``.
    """

    def __init__(self, keys: TenantKeys, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        self._keys = keys
        self._held = keys.held
        self._now = clock.monotonic_ms
        self._random_bytes = random_bytes

    def encrypt(self, queue: str, id: bytes, kind: Field, plaintext: bytes) -> bytes:
        """Return the envelope of ``plaintext``, bound to this tenant, queue, message id and kind."""
        return self._encrypted(queue, kind, [id], [plaintext])[0]

    def encrypt_bodies(self, queue: str, ids: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
        """Return the envelopes of many bodies, faster than ``encrypt`` for each."""
        return self._encrypted(queue, "body", ids, bodies)

    def _encrypted(self, queue: str, kind: Field, ids: Sequence[bytes], plaintexts: Sequence[bytes]) -> list[bytes]:
        keys, count = self._keys, len(plaintexts)
        key = self._held.get(keys.current)
        if not isinstance(key, DataKey) or keys.uses_left < count or self._now() >= key.expires_at:
            raise self._not_loaded()
        keys.uses_left -= count
        return key.encrypt_many(queue, kind, ids, plaintexts, self._random_bytes(NONCE_BYTES * count))

    def decrypt(self, queue: str, id: bytes, kind: Field, blob: bytes) -> bytes:
        """Return the plaintext of an envelope. ``queue`` is its original queue. Raises DecryptionFailed, Erased or KmsUnavailable."""
        number = key_number(blob)
        key = self._held.get(number)
        if not isinstance(key, DataKey) or self._now() >= key.expires_at:
            if number == SECRET or number in self._keys.broken:
                raise DecryptionFailed(queue=queue, id=id_text(id))
            raise self._not_loaded()
        return key.decrypt(queue, id, kind, blob)

    def decrypt_bodies(
        self, queue: str, ids: Sequence[bytes], blobs: Sequence[bytes]
    ) -> list[bytes | DecryptionFailed]:
        """Return the plaintext of many bodies, or in its place a DecryptionFailed. Raises Erased or KmsUnavailable."""
        if len({blob[:5] for blob in blobs}) == 1:
            key = self._held.get(int.from_bytes(blobs[0][1:5]))
            if isinstance(key, DataKey) and self._now() < key.expires_at:
                return key.decrypt_many(queue, "body", ids, blobs)
        return [self._decrypt_or_error(queue, id, blob) for id, blob in zip(ids, blobs, strict=True)]

    def _decrypt_or_error(self, queue: str, id: bytes, blob: bytes) -> bytes | DecryptionFailed:
        try:
            return self.decrypt(queue, id, "body", blob)
        except DecryptionFailed as error:
            return error

    def digest(self, plaintext: bytes) -> bytes:
        """Return a digest of 16 bytes, keyed by the tenant's secret."""
        secret = self._held.get(SECRET)
        if not isinstance(secret, TenantSecret) or self._now() >= secret.expires_at:
            raise self._not_loaded()
        return secret.digest(plaintext)

    async def load(self, blobs: Iterable[bytes]) -> None:
        """Load the data keys of these envelopes. Other bytes are ignored here. Raises KmsUnavailable, KmsError or Erased."""
        heads = {blob[:5] for blob in blobs if len(blob) >= OVERHEAD_BYTES and blob[0] == FORMAT}
        numbers = {int.from_bytes(head[1:]) for head in heads}
        numbers.discard(SECRET)
        await self._keys.load(numbers)

    async def load_secret(self) -> None:
        """Load the tenant's secret for ``digest``. Raises KmsUnavailable, KmsError or Erased."""
        await self._keys.load({SECRET})

    def _not_loaded(self) -> TenantqError:
        return Erased() if self._keys.erased else KmsUnavailable("The tenant's data keys are not loaded. Try again.")


class Vault:
    """The keys of all encrypted tenants of one server. Belongs to one event loop."""

    def __init__(
        self,
        store: DataKeyStore,
        kms_by_name: Mapping[str, Kms],
        clock: Clock,
        random_bytes: Callable[[int], bytes] = os.urandom,
        settings: VaultSettings | None = None,
    ) -> None:
        """``random_bytes`` must be cryptographically strong, because data keys and nonces come from it."""
        settings = settings or VaultSettings()
        self._cache = KeyCache(clock, age_max_ms=settings.key_age_max_ms, keys_max=settings.cached_keys_max)
        self._context = VaultContext(store, kms_by_name, clock, random_bytes, settings, self._cache, self._spawn)
        self._tenants: dict[int, TenantKeys] = {}
        self._ciphers: dict[int, TenantCipher] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def cipher(self, tenant_id: int, policy: KeyPolicy, uses: int = 1) -> TenantCipher | None:
        """Return the tenant's cipher if ``uses`` records can be encrypted now; None: call ``ready``."""
        keys = self._tenants.get(tenant_id)
        return self._ciphers[tenant_id] if keys is not None and keys.is_current(policy, uses) else None

    async def ready(self, tenant_id: int, policy: KeyPolicy, uses: int = 1) -> TenantCipher:
        """Return the tenant's cipher when ``uses`` records can be encrypted before the next await.

        The first call creates the tenant's keys. A rotation that is due runs in the background, with the old key in use meanwhile.
        Raises KmsUnavailable, KmsError or Erased.
        """
        keys = self._of(tenant_id)
        await keys.prepare(policy, uses)
        return self._ciphers[tenant_id]

    def reader(self, tenant_id: int) -> TenantCipher:
        """Return the tenant's cipher for decryption only, also if encryption was switched off. Makes no call."""
        self._of(tenant_id)
        return self._ciphers[tenant_id]

    async def rotate(self, tenant_id: int) -> int:
        """Create a new data key now and return its number. Older envelopes stay readable."""
        return await self._of(tenant_id).rotate()

    async def rewrap(self, tenant_id: int, ref: KeyRef) -> int:
        """Wrap all of the tenant's keys again with ``ref`` and return how many.

        For a change to another key or provider, or after a rotation in the key management system. The old key must work until
        then. An interrupted call may be repeated.
        """
        self.check_key(ref)
        return await self._of(tenant_id).rewrap(ref)

    async def shred(self, tenant_id: int) -> int:
        """Destroy the tenant's keys and return how many. From the start of the call nothing can be decrypted any more."""
        return await self._of(tenant_id).shred()

    def forget(self, tenant_id: int) -> None:
        """Drop the state of a deleted tenant."""
        self._cache.forget(tenant_id)
        self._tenants.pop(tenant_id, None)
        self._ciphers.pop(tenant_id, None)

    def check_key(self, ref: KeyRef) -> None:
        """Raise KmsError if the provider is not configured, Invalid if the key name is malformed. Makes no call."""
        self._context.kms(ref).check_key(ref.key)

    async def check(self, ref: KeyRef) -> KeyHealth:
        """Test a key by wrapping and unwrapping, and return its health."""
        self.check_key(ref)
        return await self._context.kms(ref).check(ref.key)

    def forget_health(self, ref: KeyRef) -> None:
        """Drop the health of a key that is not in use."""
        self._context.kms(ref).forget_health(ref.key)

    def health(self) -> VaultHealth:
        """Return the health of every key used so far, and the number of cached keys."""
        keys = [key for kms in self._context.kms_by_name.values() for key in kms.health()]
        return VaultHealth(keys, len(self._tenants), len(self._cache))

    async def close(self) -> None:
        """Cancel background tasks and drop all keys. The key management systems stay open."""
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
            keys = self._tenants[tenant_id] = TenantKeys(tenant_id, self._context)
            self._ciphers[tenant_id] = TenantCipher(keys, self._context.clock, self._context.random_bytes)
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
            task.exception()  # marks it as retrieved; callers got their own copy
