"""Between the service and the vault: seals what encrypted tenants put in, opens what comes out, and looks after their keys.

The engine never sees plaintext of an encrypted tenant, and the vault never sees a queue. For tenants that are not encrypted
nothing here is called.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence  # msgspec reads the fields' types
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.domain.config import Encryption
from tenantq.domain.formatting import plural
from tenantq.domain.message import Delivery, Facts, NewMessage, Result, checked_message, is_plain
from tenantq.engine.ops.add import batch_bytes
from tenantq.engine.ops.settle import check_results, parse_receipt
from tenantq.engine.queue_state import TenantState
from tenantq.engine.tenant_snapshot import MessageCopy, StoredResult
from tenantq.errors import Erased, Invalid, KeyDisabled, KmsDenied, KmsError, KmsUnavailable, SealBroken, TenantqError
from tenantq.kms.interface import KeyHealth, KeyRef, Kms
from tenantq.kms.server_keyring import PREFIX, ServerManagedKeys
from tenantq.runtime.clock import Clock
from tenantq.store.keys import digest
from tenantq.vault import KeyPolicy, TenantCipher, Vault, VaultHealth, WrappedKey
from tenantq.vault.stored_keys import StoredDataKeys

if TYPE_CHECKING:
    from tenantq.engine.shard import Shard

log = logging.getLogger("tenantq")

REST_MS: Final = 1_000
"""So long fleets leave a tenant alone whose messages could not be opened."""

_encode = msgspec.msgpack.Encoder().encode
_decode_attributes = msgspec.msgpack.Decoder(dict[str, str]).decode
_decode_result = msgspec.msgpack.Decoder(tuple[bytes | None, str | None]).decode
_FAILURES: Final[dict[str, type[TenantqError]]] = {
    "unavailable": KmsUnavailable,
    "denied": KmsDenied,
    "disabled": KeyDisabled,
}


class SealedBatch(msgspec.Struct, frozen=True):
    """Messages as the engine gets them, and what stands for the batch where its key is remembered."""

    messages: Sequence[NewMessage | TenantqError]
    digests: tuple[bytes, ...] = ()
    plain: bool = False  # all are nothing but bodies, of one priority


class Opened(msgspec.Struct, frozen=True):
    """What could be opened of what was leased, and what is broken."""

    whole: list[Delivery]
    broken: list[Delivery] = []


class MessageEncryption:
    """Encryption as the service uses it."""

    def __init__(
        self,
        shard: Shard,
        vault: Vault,
        book: StoredDataKeys,
        clock: Clock,
        *,
        providers: Mapping[str, Kms],
        default_key: str | None = None,
        own_keys: ServerManagedKeys | None = None,
    ) -> None:
        """``own_keys``: where a key is made for each tenant that names none, if there is no ``default_key`` for all."""
        self._shard = shard
        self._vault = vault
        self._book = book
        self._clock = clock
        self._providers = providers
        self._default_key = default_key
        self._own_keys = own_keys
        self._policies: dict[int, tuple[Encryption, KeyPolicy]] = {}
        self._resting: dict[str, int] = {}  # tenants whose messages could not be opened, and until when (monotonic)
        self.broken = 0  # messages that did not open since the start, and were set aside
        self.keyless = {  # tenants whose data keys are gone although they are not being deleted
            one.id
            for one in shard.state.catalog.tenants.values()
            if one.next_data_key and one.erasing is None and not shard.state.data_keys.of(one.id)
        }
        self.sealed_tenants = shard.state.data_keys.by_tenant
        """Whoever is not in here has nothing that is encrypted: the one look that others pay for."""

    async def close(self) -> None:
        """Forget every key, and let go of the key management systems."""
        await self._vault.close()
        for provider in self._providers.values():
            await provider.close()

    # ---- keys ----

    def key_of(self, tenant: str, encryption: Encryption) -> KeyRef:
        """Return what wraps a tenant's data keys: its own choice, the server's, or a key of its own in the keyring."""
        named = encryption.key or self._default_key
        if named is not None:
            return KeyRef.parse(named)
        if self._own_keys is None:
            raise Invalid(
                "encryption.key: name the key that wraps the tenant's data keys; this server has no default for it"
            )
        return self._own_keys.ref(tenant)

    def _policy(self, tenant: TenantState) -> KeyPolicy:
        wanted = tenant.config.encryption
        known = self._policies.get(tenant.id)
        if known is None or known[0] is not wanted:
            known = wanted, KeyPolicy(self.key_of(tenant.name, wanted), wanted.rotate_every_ms)
            self._policies[tenant.id] = known
        return known[1]

    async def check_key(self, tenant: str, tenant_id: int | None, encryption: Encryption) -> None:
        """Raise unless a tenant's key works; one of its own is made first, unless there are data keys that an earlier one wrapped."""
        ref = self.key_of(tenant, encryption)
        own = self._own_keys
        if ref.provider == "local" and ref.key.startswith(PREFIX) and ref.key != PREFIX + tenant:
            raise Invalid(f"encryption.key: keys named {PREFIX}… are destroyed with their tenant; name another one")
        if own is not None and ref == own.ref(tenant):
            wrapped = self._book.known(tenant_id).values() if tenant_id is not None else ()
            if all(key.key != ref for key in wrapped):
                await own.make(tenant)
        health = await self._vault.check(ref)
        if health.state != "ok":
            raise _FAILURES.get(health.state, KmsError)(health.text, tenant=tenant)

    async def rotate(self, tenant: TenantState) -> int:
        """Make a new data key now, and return its number."""
        if tenant.config.encryption.enabled:
            await self._sealer(tenant, 1)
        return await self._vault.rotate(tenant.id)

    async def rewrap(self, tenant: TenantState) -> tuple[int, KeyRef]:
        """Wrap all data keys anew by the tenant's key as it is now; return how many, and the key."""
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
        except KmsUnavailable as error:
            if tenant.erasing is not None:
                raise
            log.warning("tenant %s: cannot check whether the keyring has its key: %s", tenant.name, error)

    def forget(self, tenant: TenantState) -> None:
        """Let go of everything about a tenant that is gone."""
        self._vault.forget(tenant.id)
        self.keyless.discard(tenant.id)
        self._policies.pop(tenant.id, None)

    def data_keys(self, tenant: TenantState) -> list[WrappedKey]:
        """Return a tenant's data keys, oldest first, its secret not among them."""
        return [key for number, key in sorted(self._book.known(tenant.id).items()) if number]

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
        """Yield the key that wraps each data key of each tenant; those that many share, many times."""
        for tenant_id in list(self.sealed_tenants):
            for wrapped in self._book.known(tenant_id).values():
                yield wrapped.key

    async def try_key(self, ref: KeyRef) -> KeyHealth:
        """Have a key wrap and unwrap something, and return how it went. Bounded in time; Invalid where there is no such provider."""
        return await self._vault.check(ref)

    def health_of(self, tenant: TenantState) -> KeyHealth | None:
        """Return how a tenant's key did when it was last used; None: it was not, since the start."""
        ref = self.key_of(tenant.name, tenant.config.encryption)
        found = (one for one in self._vault.health().keys if (one.provider, one.key) == (ref.provider, ref.key))
        return next(found, None)

    async def _sealer(self, tenant: TenantState, uses: int) -> TenantCipher:
        """Return what seals, with room for so many records until the next await."""
        policy = self._policy(tenant)
        return self._vault.cipher(tenant.id, policy, uses) or await self._vault.ready(tenant.id, policy, uses)

    # ---- going in ----

    async def seal_messages(
        self, tenant: TenantState, queue: str, messages: Sequence[NewMessage | TenantqError], batch_key: str | None
    ) -> SealedBatch:
        """Return messages encrypted, each for its id; to be added before anything else is waited for. KmsUnavailable, KmsError."""
        plain = all(isinstance(one, TenantqError) or is_plain(one) for one in messages)
        checked = messages if plain else [checked_message(one) for one in messages]
        good = [one for one in checked if not isinstance(one, TenantqError)]
        if not good:
            return SealedBatch(checked)
        sealer = await self._sealer(tenant, 2 * len(good))
        ids = self._shard.state.new_ids(len(good))
        records = sealer.encrypt_bodies(queue, ids, [one.body for one in good])
        if plain:
            sealed = [
                NewMessage(body=record, priority=one.priority, raw_id=id, sealed=True)
                for one, id, record in zip(good, ids, records, strict=True)
            ]
        else:
            secret = _matcher(tenant.config.encryption.secret_attributes)
            sealed = [
                _sealed_message(sealer, queue, one, id, record, secret)
                for one, id, record in zip(good, ids, records, strict=True)
            ]
        digests: tuple[bytes, ...] = ()
        if batch_key is not None:
            raw = batch_bytes([b"" if isinstance(one, TenantqError) else one.body for one in checked])
            digests = sealer.digest(raw), digest(raw)
        if len(good) == len(checked):
            return SealedBatch(sealed, digests, plain and len({one.priority for one in good}) == 1)
        following = iter(sealed)
        return SealedBatch([one if isinstance(one, TenantqError) else next(following) for one in checked], digests)

    async def recognise(
        self, tenant: TenantState, messages: Sequence[NewMessage | TenantqError], batch_key: str | None
    ) -> SealedBatch:
        """Return messages in plain of a tenant that was encrypted, so that those are known again that came before it was switched off.

        Where its keys cannot be had, they are taken as they are: an idempotency key may then be refused as used for something else.
        """
        if batch_key is None and not any(isinstance(one, NewMessage) and one.key is not None for one in messages):
            return SealedBatch(messages)
        reader = self._vault.reader(tenant.id)
        try:
            await reader.load_secret()
        except TenantqError:
            return SealedBatch(messages)
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
        return SealedBatch(known, digests)

    async def seal_results(
        self, tenant: TenantState, queue: str, receipts: Sequence[str], results: Sequence[Result | None]
    ) -> list[Result | None]:
        """Return results encrypted, value and error alike, each for the message that its receipt names."""
        check_results(receipts, results)
        sealer = await self._sealer(tenant, len(results))
        sealed: list[Result | None] = []
        for receipt, result in zip(receipts, results, strict=True):
            parsed = parse_receipt(receipt)
            if result is None or parsed is None:
                sealed.append(None)
                continue
            sealed.append(_sealed_result(sealer, queue, parsed[0], result))
        return sealed

    # ---- coming out ----

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
        return reader

    async def open_deliveries(self, tenant_id: int, got: list[Delivery]) -> Opened:
        """Return leased messages of one tenant opened. KmsUnavailable, KmsError, Erased: then nothing is."""
        sealed = [one for one in got if one.sealed]
        if not sealed:
            return Opened(got)
        blobs = [one.body for one in sealed]
        reader = await self._reader(tenant_id, blobs)
        queue = got[0].queue
        if len(sealed) < len(got) or [1 for one in got if one.origin or one.sealed_attributes or one.queue != queue]:
            return _opened_singly(reader, got)
        bodies = reader.decrypt_bodies(queue, [one.raw_id for one in got], blobs)
        replace = msgspec.structs.replace
        whole = [
            replace(one, body=body, sealed=False) for one, body in zip(got, bodies, strict=True) if type(body) is bytes
        ]
        if len(whole) == len(got):
            return Opened(whole)
        return Opened(whole, [one for one, body in zip(got, bodies, strict=True) if type(body) is not bytes])

    async def open_facts(self, tenant_id: int, seen: list[Facts]) -> list[Facts]:
        """Return stored messages of one tenant opened; one that is broken says so in ``body_error``."""
        sealed = [one.body for one in seen if one.sealed]
        if not sealed:
            return seen
        reader = await self._reader(tenant_id, sealed)
        return [_opened_facts(reader, one) if one.sealed else one for one in seen]

    async def open_result(self, tenant_id: int, queue: str, id: bytes, result: Result) -> Result:
        """Return a result opened; SealBroken, KmsUnavailable, KmsError, Erased."""
        if not result.sealed or result.value is None:
            return result
        reader = await self._reader(tenant_id, [result.value])
        value, error = _decode_result(reader.decrypt(queue, id, "result", result.value))
        return Result(result.status, value, error)

    # ---- moving ----

    async def open_stored(
        self, tenant_id: int, queue: str, messages: list[MessageCopy]
    ) -> list[MessageCopy | SealBroken]:
        """Return stored messages of one queue opened, in place of one that does not open the error; KmsUnavailable, KmsError, Erased."""
        blobs = [one.body for one in messages if one.sealed]
        if not blobs:
            return list(messages)
        reader = await self._reader(tenant_id, blobs)
        return [_opened_stored(reader, queue, one) if one.sealed else one for one in messages]

    async def open_results(
        self, tenant_id: int, queue: str, results: list[StoredResult]
    ) -> list[StoredResult | SealBroken]:
        """Return stored results of one queue opened, in place of one that does not open the error."""
        opened: list[StoredResult | SealBroken] = []
        for one in results:
            try:
                result = await self.open_result(tenant_id, queue, one.raw_id, one.result)
            except SealBroken as error:
                opened.append(error)
                continue
            opened.append(msgspec.structs.replace(one, result=result))
        return opened

    async def seal_stored(
        self, tenant: TenantState, queue: str, messages: list[MessageCopy], results: list[StoredResult]
    ) -> tuple[list[MessageCopy], list[StoredResult]]:
        """Return what comes in from elsewhere encrypted, each for the id it has."""
        sealer = await self._sealer(tenant, 2 * len(messages) + len(results))
        secret = _matcher(tenant.config.encryption.secret_attributes)
        return (
            [_sealed_stored(sealer, queue, one, secret) for one in messages],
            [
                msgspec.structs.replace(one, result=_sealed_result(sealer, queue, one.raw_id, one.result))
                for one in results
            ],
        )

    # ---- fleets ----

    def rest(self, tenant: str) -> None:
        """Have fleets leave a tenant alone for a moment, whose messages could not be opened."""
        self._resting[tenant] = self._clock.monotonic_ms() + REST_MS

    def resting(self) -> dict[str, int]:
        """Return the tenants that fleets leave alone, and for how long yet, in ms."""
        if not self._resting:
            return {}
        now = self._clock.monotonic_ms()
        self._resting = {tenant: until for tenant, until in self._resting.items() if until > now}
        return {tenant: until - now for tenant, until in self._resting.items()}


def _sealed_message(
    sealer: TenantCipher, queue: str, message: NewMessage, id: bytes, record: bytes, secret: re.Pattern[str]
) -> NewMessage:
    hidden = {name: value for name, value in message.attributes.items() if secret.match(name) is not None}
    return NewMessage(
        body=record,
        priority=message.priority,
        delay_ms=message.delay_ms,
        ttl_ms=message.ttl_ms,
        key=message.key,
        group=message.group,
        attributes={name: value for name, value in message.attributes.items() if name not in hidden},
        max_attempts=message.max_attempts,
        key_alone=message.key_alone,
        raw_id=id,
        sealed=True,
        sealed_attributes=sealer.encrypt(queue, id, "attributes", _encode(hidden)) if hidden else b"",
        digest=sealer.digest(message.body) if message.key is not None else None,
        known_as=digest(message.body) if message.key is not None else None,
    )


def _sealed_result(sealer: TenantCipher, queue: str, id: bytes, result: Result) -> Result:
    blob = sealer.encrypt(queue, id, "result", _encode((result.value, result.error)))
    return Result(result.status, blob, None, sealed=True)


def _sealed_stored(sealer: TenantCipher, queue: str, one: MessageCopy, secret: re.Pattern[str]) -> MessageCopy:
    origin, id = one.origin(queue), one.raw_id
    hidden = {name: value for name, value in one.attributes.items() if secret.match(name) is not None}
    return msgspec.structs.replace(
        one,
        body=sealer.encrypt(origin, id, "body", one.body),
        attributes={name: value for name, value in one.attributes.items() if name not in hidden},
        sealed=True,
        sealed_attributes=sealer.encrypt(origin, id, "attributes", _encode(hidden)) if hidden else b"",
    )


def _opened_stored(reader: TenantCipher, queue: str, one: MessageCopy) -> MessageCopy | SealBroken:
    try:
        body, attributes = _opened_parts(reader, one.origin(queue), one)
    except SealBroken as error:
        return error
    return msgspec.structs.replace(one, body=body, attributes=attributes, sealed=False, sealed_attributes=b"")


def _opened_singly(reader: TenantCipher, got: list[Delivery]) -> Opened:
    """Open messages of several queues or kinds, one by one."""
    whole, broken = list[Delivery](), list[Delivery]()
    for one in got:
        if not one.sealed:
            whole.append(one)
            continue
        try:
            body, attributes = _opened_parts(reader, one.origin or one.queue, one)
        except SealBroken:
            broken.append(one)
            continue
        whole.append(
            msgspec.structs.replace(one, body=body, attributes=attributes, sealed=False, sealed_attributes=b"")
        )
    return Opened(whole, broken)


def _opened_facts(reader: TenantCipher, facts: Facts) -> Facts:
    try:
        body, attributes = _opened_parts(reader, facts.origin, facts)
    except SealBroken as error:
        return msgspec.structs.replace(
            facts, body=b"", attributes={}, sealed_attributes=b"", body_error=error.code
        )  # fmt: skip
    return msgspec.structs.replace(facts, body=body, attributes=attributes, sealed_attributes=b"")


def _opened_parts(
    reader: TenantCipher, origin: str, one: Delivery | Facts | MessageCopy
) -> tuple[bytes, dict[str, str]]:
    body = reader.decrypt(origin, one.raw_id, "body", one.body)
    if not one.sealed_attributes:
        return body, one.attributes
    hidden = reader.decrypt(origin, one.raw_id, "attributes", one.sealed_attributes)
    return body, {**one.attributes, **_decode_attributes(hidden)}


@lru_cache(maxsize=1_024)
def _matcher(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return what matches the names that any of the patterns covers."""
    return re.compile("|".join(map(translate, patterns)) or r"(?!)")
