"""Encrypts and decrypts the messages of encrypted tenants with keys from the vault, and manages those keys.

The engine never sees plaintext of an encrypted tenant. Nothing here is called for other tenants.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence  # msgspec reads the fields' types
from typing import Final

import msgspec

from tenantq.domain.config import Encryption
from tenantq.domain.formatting import plural
from tenantq.domain.message import Delivery, Facts, NewMessage, Result, checked_message, is_plain
from tenantq.engine.operation import parts_of
from tenantq.engine.ops.add import batch_bytes, stored_bytes
from tenantq.engine.ops.settle import check_results, parse_receipt
from tenantq.engine.queue_state import TenantState
from tenantq.engine.shard import Shard
from tenantq.engine.tenant_snapshot import MessageCopy, StoredResult
from tenantq.errors import (
    DecryptionFailed,
    Erased,
    Invalid,
    KeyDisabled,
    KmsDenied,
    KmsError,
    KmsUnavailable,
    TenantqError,
)
from tenantq.kms.interface import KeyHealth, KeyRef, Kms
from tenantq.kms.server_keyring import PREFIX, ServerManagedKeys
from tenantq.runtime.clock import Clock
from tenantq.runtime.loop_slices import next_slice
from tenantq.service import message_cipher
from tenantq.store.keys import digest
from tenantq.vault.settings import KeyPolicy
from tenantq.vault.stored_keys import StoredDataKeys
from tenantq.vault.vault import TenantCipher, Vault, VaultHealth
from tenantq.vault.wrapped_key import WrappedKey

log = logging.getLogger("tenantq")

_AT_ONCE_BYTES: Final = 1 << 20
EXCLUDED_MS: Final = 1_000
"""How long fleet polls leave out a tenant whose messages could not be decrypted."""

_FAILURES: Final = {"unavailable": KmsUnavailable, "denied": KmsDenied, "disabled": KeyDisabled}


class PreparedBatch(msgspec.Struct, frozen=True):
    """Messages for the engine, and the digests of the batch that are stored with its idempotency key."""

    messages: Sequence[NewMessage | TenantqError]
    digests: tuple[bytes, ...] = ()
    plain: bool = False  # only bodies, all of one priority


class DecryptedDeliveries(msgspec.Struct, frozen=True):
    """Leased messages: those that were decrypted, and those that could not be."""

    intact: list[Delivery]
    broken: list[Delivery] = []


class MessageEncryption:
    """Encryption of messages and results, and the keys of encrypted tenants."""

    def __init__(
        self,
        shard: Shard,
        vault: Vault,
        stored_keys: StoredDataKeys,
        clock: Clock,
        *,
        providers: Mapping[str, Kms],
        default_key: str | None = None,
        own_keys: ServerManagedKeys | None = None,
    ) -> None:
        """Without ``default_key``, ``own_keys`` creates a key for each tenant that names none."""
        self._shard = shard
        self._vault = vault
        self._stored_keys = stored_keys
        self._clock = clock
        self.providers = providers
        self._default_key = default_key
        self._own_keys = own_keys
        self._policies: dict[int, tuple[Encryption, KeyPolicy]] = {}
        self._excluded: dict[str, int] = {}  # tenants that fleet polls leave out, and until when (monotonic)
        self.broken = 0  # messages that could not be decrypted since the start
        self.keyless = {  # tenants whose data keys are gone although they are not being deleted
            one.id
            for one in shard.state.catalog.tenants.values()
            if one.next_data_key and one.erasing is None and not shard.state.data_keys.of(one.id)
        }
        self.encrypted_tenants = shard.state.data_keys.by_tenant
        """Other tenants have no encrypted messages, and cost only this lookup."""

    async def close(self) -> None:
        """Drop all keys and close the key management clients."""
        await self._vault.close()
        for provider in self.providers.values():
            await provider.close()

    # ---- keys ----

    def key_of(self, tenant: str, encryption: Encryption) -> KeyRef:
        """Return the key that wraps a tenant's data keys: its configured key, the server's default, or its own in the keyring."""
        named = encryption.key or self._default_key
        if named is not None:
            return KeyRef.parse(named)
        if self._own_keys is None:
            raise Invalid("encryption.key: required, because this server has no default key")
        return self._own_keys.ref(tenant)

    def _policy(self, tenant: TenantState) -> KeyPolicy:
        wanted = tenant.config.encryption
        known = self._policies.get(tenant.id)
        if known is None or known[0] is not wanted:
            known = wanted, KeyPolicy(self.key_of(tenant.name, wanted), wanted.rotate_every_ms)
            self._policies[tenant.id] = known
        return known[1]

    async def check_key(self, tenant: str, tenant_id: int | None, encryption: Encryption) -> None:
        """Raise unless a tenant's key works. Its own key is created first, unless existing data keys need an earlier one."""
        ref = self.key_of(tenant, encryption)
        own = self._own_keys
        if ref.provider == "local" and ref.key.startswith(PREFIX) and ref.key != PREFIX + tenant:
            raise Invalid(f"encryption.key: keys named {PREFIX}… are destroyed with their tenant. Use another key.")
        if own is not None and ref == own.ref(tenant):
            wrapped = self._stored_keys.known(tenant_id).values() if tenant_id is not None else ()
            if all(key.key != ref for key in wrapped):
                await own.make(tenant)
        health = await self._vault.check(ref)
        if health.state != "ok":
            if ref not in self.keys_in_use():
                self._vault.forget_health(ref)  # a refused setting is no failing key
            raise _FAILURES.get(health.state, KmsError)(health.text, tenant=tenant)

    async def rotate(self, tenant: TenantState) -> int:
        """Create a new data key and return its number."""
        if tenant.config.encryption.enabled:
            await self._cipher(tenant, 1)
        return await self._vault.rotate(tenant.id)

    async def rewrap(self, tenant: TenantState) -> tuple[int, KeyRef]:
        """Wrap all data keys with the tenant's current key. Return their number and the key."""
        ref = self.key_of(tenant.name, tenant.config.encryption)
        return await self._vault.rewrap(tenant.id, ref), ref

    async def shred(self, tenant: TenantState) -> None:
        """Destroy a tenant's data keys, and its own key in the keyring, so that no copy can be decrypted. Can be repeated."""
        if tenant.erasing is not None:
            await self._vault.shred(tenant.id)
        if self._own_keys is None:
            return
        try:
            await self._own_keys.destroy(tenant.name)
            self._vault.forget_health(self._own_keys.ref(tenant.name))
        except KmsUnavailable as error:
            if tenant.erasing is not None:
                raise
            log.warning("tenant %s: cannot check whether the keyring has its key: %s", tenant.name, error)

    def forget(self, tenant: TenantState) -> None:
        """Drop the state of a deleted tenant."""
        self._vault.forget(tenant.id)
        self.keyless.discard(tenant.id)
        self._policies.pop(tenant.id, None)

    def data_keys(self, tenant: TenantState) -> list[WrappedKey]:
        """Return a tenant's data keys, oldest first, without its secret."""
        return [key for number, key in sorted(self._stored_keys.known(tenant.id).items()) if number]

    def health(self) -> VaultHealth:
        """Return the health of every key used so far."""
        return self._vault.health()

    @property
    def summary(self) -> str:
        """``ok``, or the number of failed keys and of tenants whose data keys are missing."""
        if not self.keyless:
            return self._vault.health().summary
        missing = f"{plural(len(self.keyless), 'tenant')} without data keys"
        return missing if self._vault.health().ok else f"{self._vault.health().summary}, {missing}"

    def keys_in_use(self) -> Iterator[KeyRef]:
        """Yield the key that wraps each data key of each tenant. Shared keys are repeated."""
        for tenant_id in list(self.encrypted_tenants):
            for wrapped in self._stored_keys.known(tenant_id).values():
                yield wrapped.key

    async def try_key(self, ref: KeyRef) -> KeyHealth:
        """Try to wrap and unwrap with a key, in bounded time, and return its health. Raises Invalid for an unknown provider."""
        return await self._vault.check(ref)

    def health_of(self, tenant: TenantState) -> KeyHealth | None:
        """Return the health of a tenant's key at its last use, or None if it was not used since the start."""
        ref = self.key_of(tenant.name, tenant.config.encryption)
        found = (one for one in self._vault.health().keys if (one.provider, one.key) == (ref.provider, ref.key))
        return next(found, None)

    async def _cipher(self, tenant: TenantState, uses: int) -> TenantCipher:
        """Return a cipher that can encrypt ``uses`` records until the next await."""
        policy = self._policy(tenant)
        return self._vault.cipher(tenant.id, policy, uses) or await self._vault.ready(tenant.id, policy, uses)

    # ---- encrypting ----

    async def encrypt_messages(
        self, tenant: TenantState, queue: str, messages: Sequence[NewMessage | TenantqError], batch_key: str | None
    ) -> PreparedBatch:
        """Return encrypted messages with IDs. Add them before awaiting anything else. Raises KmsUnavailable or KmsError."""
        sizes = [stored_bytes(one) for one in messages]
        if sum(sizes) > _AT_ONCE_BYTES and len(parts := parts_of(sizes)) > 1:
            return await self._encrypt_parts(tenant, queue, messages, parts, batch_key)
        plain = all(isinstance(one, TenantqError) or is_plain(one) for one in messages)
        checked = messages if plain else [checked_message(one) for one in messages]
        good = [one for one in checked if not isinstance(one, TenantqError)]
        if not good:
            return PreparedBatch(checked)
        cipher = await self._cipher(tenant, 2 * len(good))
        ids = self._shard.state.new_ids(len(good))
        records = cipher.encrypt_bodies(queue, ids, [one.body for one in good])
        tenant.counters.encrypted += len(good)
        if plain:
            encrypted = [
                NewMessage(body=record, priority=one.priority, raw_id=id, encrypted=True)
                for one, id, record in zip(good, ids, records, strict=True)
            ]
        else:
            secret = message_cipher.secret_names(tenant.config.encryption.secret_attributes)
            encrypted = [
                message_cipher.encrypt_message(cipher, queue, one, id, record, secret)
                for one, id, record in zip(good, ids, records, strict=True)
            ]
        digests: tuple[bytes, ...] = ()
        if batch_key is not None:
            raw = batch_bytes([b"" if isinstance(one, TenantqError) else one.body for one in checked])
            digests = cipher.digest(raw), digest(raw)
        if len(good) == len(checked):
            return PreparedBatch(encrypted, digests, plain and len({one.priority for one in good}) == 1)
        following = iter(encrypted)
        return PreparedBatch([one if isinstance(one, TenantqError) else next(following) for one in checked], digests)

    async def _encrypt_parts(
        self,
        tenant: TenantState,
        queue: str,
        messages: Sequence[NewMessage | TenantqError],
        parts: list[slice],
        batch_key: str | None,
    ) -> PreparedBatch:
        """Return a large batch encrypted, in slices of the event loop's time."""
        encrypted: list[NewMessage | TenantqError] = []
        plain = True
        for part in parts:
            if encrypted:
                await next_slice()
            batch = await self.encrypt_messages(tenant, queue, messages[part], None)
            encrypted += batch.messages
            plain = plain and batch.plain
        digests: tuple[bytes, ...] = ()
        if batch_key is not None:
            pairs = zip(messages, encrypted, strict=True)
            bodies = [
                one.body if isinstance(one, NewMessage) and isinstance(kept, NewMessage) else b"" for one, kept in pairs
            ]
            cipher = await self._cipher(tenant, 1)
            raw = await asyncio.to_thread(batch_bytes, bodies)
            digests = cipher.digest(raw), digest(raw)
        priorities = {one.priority for one in encrypted if isinstance(one, NewMessage)}
        return PreparedBatch(encrypted, digests, plain and len(priorities) == 1)

    async def add_digests(
        self, tenant: TenantState, messages: Sequence[NewMessage | TenantqError], batch_key: str | None
    ) -> PreparedBatch:
        """Return plain messages of a tenant that was encrypted, with digests that match those of its encrypted messages.

        Without its keys the digests are missing, and a repeated idempotency key may be refused as a conflict.
        """
        if batch_key is None and not any(isinstance(one, NewMessage) and one.key is not None for one in messages):
            return PreparedBatch(messages)
        reader = self._vault.reader(tenant.id)
        try:
            await reader.load_secret()
        except TenantqError:
            return PreparedBatch(messages)
        known = [
            msgspec.structs.replace(one, known_as=reader.digest(one.body))
            if isinstance(one, NewMessage) and one.key is not None and type(one.body) is bytes
            else one
            for one in messages
        ]
        digests: tuple[bytes, ...] = ()
        if batch_key is not None:
            checked = [checked_message(one) for one in messages]
            raw = batch_bytes([b"" if isinstance(one, TenantqError) else one.body for one in checked])
            digests = digest(raw), reader.digest(raw)
        return PreparedBatch(known, digests)

    async def encrypt_results(
        self, tenant: TenantState, queue: str, receipts: Sequence[str], results: Sequence[Result | None]
    ) -> list[Result | None]:
        """Return encrypted results. Each is bound to the message of its receipt."""
        check_results(receipts, results)
        cipher = await self._cipher(tenant, len(results))
        encrypted: list[Result | None] = []
        for receipt, result in zip(receipts, results, strict=True):
            parsed = parse_receipt(receipt)
            if result is None or parsed is None:
                encrypted.append(None)
                continue
            encrypted.append(message_cipher.encrypt_result(cipher, queue, parsed[0], result))
            tenant.counters.encrypted += 1
        return encrypted

    # ---- decrypting ----

    async def _reader(self, tenant_id: int, blobs: Sequence[bytes]) -> TenantCipher:
        """Return a cipher that can decrypt these envelopes. Raises Erased if the tenant has no data keys."""
        reader = self._vault.reader(tenant_id)
        try:
            await reader.load(blobs)
        except Erased:
            if self._shard.state.catalog.tenant_by_id(tenant_id).erasing is None:
                self.keyless.add(tenant_id)
            raise
        self.keyless.discard(tenant_id)
        self._shard.state.catalog.tenant_by_id(tenant_id).counters.decrypted += len(blobs)
        return reader

    async def decrypt_deliveries(self, tenant_id: int, got: list[Delivery]) -> DecryptedDeliveries:
        """Return leased messages of one tenant decrypted. Raises KmsUnavailable, KmsError or Erased."""
        encrypted = [one for one in got if one.encrypted]
        if not encrypted:
            return DecryptedDeliveries(got)
        blobs = [one.body for one in encrypted]
        reader = await self._reader(tenant_id, blobs)
        queue = got[0].queue
        unlike = [one for one in got if one.origin or one.encrypted_attributes or one.queue != queue]
        if unlike or len(encrypted) < len(got):
            return _decrypted_singly(reader, got)
        bodies = reader.decrypt_bodies(queue, [one.raw_id for one in got], blobs)
        pairs, replace = list(zip(got, bodies, strict=True)), msgspec.structs.replace
        intact = [replace(one, body=body, encrypted=False) for one, body in pairs if type(body) is bytes]
        return DecryptedDeliveries(intact, [one for one, body in pairs if type(body) is not bytes])

    async def decrypt_facts(self, tenant_id: int, seen: list[Facts]) -> list[Facts]:
        """Return stored messages of one tenant decrypted. Damaged ones have a ``body_error``."""
        encrypted = [one.body for one in seen if one.encrypted]
        if not encrypted:
            return seen
        reader = await self._reader(tenant_id, encrypted)
        return [message_cipher.decrypt_facts(reader, one) if one.encrypted else one for one in seen]

    async def decrypt_result(self, tenant_id: int, queue: str, id: bytes, result: Result) -> Result:
        """Return a result decrypted. Raises DecryptionFailed, KmsUnavailable, KmsError or Erased."""
        if not result.encrypted or result.value is None:
            return result
        reader = await self._reader(tenant_id, [result.value])
        return message_cipher.decrypt_result(reader, queue, id, result)

    # ---- moving ----

    async def decrypt_stored(
        self, tenant_id: int, queue: str, messages: list[MessageCopy]
    ) -> list[MessageCopy | DecryptionFailed]:
        """Return stored messages of one queue decrypted, or an error in place of a damaged one. Raises as ``decrypt_deliveries``."""
        blobs = [one.body for one in messages if one.encrypted]
        if not blobs:
            return list(messages)
        reader = await self._reader(tenant_id, blobs)
        decrypt = message_cipher.decrypt_or_error
        return [decrypt(reader, one.origin(queue), one) if one.encrypted else one for one in messages]

    async def decrypt_results(
        self, tenant_id: int, queue: str, results: list[StoredResult]
    ) -> list[StoredResult | DecryptionFailed]:
        """Return stored results of one queue decrypted, or an error in place of a damaged one."""
        decrypted: list[StoredResult | DecryptionFailed] = []
        for one in results:
            try:
                result = await self.decrypt_result(tenant_id, queue, one.raw_id, one.result)
            except DecryptionFailed as error:
                decrypted.append(error)
                continue
            decrypted.append(msgspec.structs.replace(one, result=result))
        return decrypted

    async def encrypt_stored(
        self, tenant: TenantState, queue: str, messages: list[MessageCopy], results: list[StoredResult]
    ) -> tuple[list[MessageCopy], list[StoredResult]]:
        """Return imported messages and results encrypted. Each is bound to its ID."""
        cipher = await self._cipher(tenant, 2 * len(messages) + len(results))
        secret = message_cipher.secret_names(tenant.config.encryption.secret_attributes)
        tenant.counters.encrypted += len(messages) + len(results)
        encrypt_result, replace = message_cipher.encrypt_result, msgspec.structs.replace
        return (
            [message_cipher.encrypt_copy(cipher, queue, one, secret) for one in messages],
            [replace(one, result=encrypt_result(cipher, queue, one.raw_id, one.result)) for one in results],
        )

    # ---- fleets ----

    def exclude_briefly(self, tenant: str) -> None:
        """Exclude a tenant from fleet polls for a moment, because its messages could not be decrypted."""
        self._excluded[tenant] = self._clock.monotonic_ms() + EXCLUDED_MS

    def excluded(self) -> dict[str, int]:
        """Return the tenants that fleet polls leave out, and for how many milliseconds."""
        if not self._excluded:
            return {}
        now = self._clock.monotonic_ms()
        self._excluded = {tenant: until for tenant, until in self._excluded.items() if until > now}
        return {tenant: until - now for tenant, until in self._excluded.items()}


def _decrypted_singly(reader: TenantCipher, got: list[Delivery]) -> DecryptedDeliveries:
    """Return messages of several queues or kinds, decrypted one by one."""
    decrypt = message_cipher.decrypt_or_error
    decrypted = [decrypt(reader, one.origin or one.queue, one) if one.encrypted else one for one in got]
    return DecryptedDeliveries(
        [one for one in decrypted if not isinstance(one, DecryptionFailed)],
        [one for one, found in zip(got, decrypted, strict=True) if isinstance(found, DecryptionFailed)],
    )
