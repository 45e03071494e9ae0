"""One tenant's data keys: numbered, wrapped by a key in a key management system, cached in memory.

Number 0 is the tenant's secret, from which the key of its digests is derived; it is never rotated. Data keys count from 1. The
highest one encrypts, all of them decrypt. One call to the key management system serves all callers that wait for it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from tenantq.errors import DecryptionFailed, Erased, Invalid, KmsError, KmsUnavailable, StoreFailed, TenantqError
from tenantq.kms.interface import KeyRef, Kms
from tenantq.runtime.clock import Clock
from tenantq.vault.envelope import KEY_BYTES, NUMBER_MAX, DataKey, PlainKey, TenantSecret
from tenantq.vault.key_cache import KeyCache
from tenantq.vault.settings import KeyPolicy, VaultSettings
from tenantq.vault.single_flight import JointWork, SingleFlight, Spawn
from tenantq.vault.wrapped_key import DataKeyStore, WrappedKey

log = logging.getLogger("tenantq")

SECRET: Final = 0
NONE: Final = -1
MARGIN_MS: Final = 1_000
"""A key that expires sooner than this is unwrapped again first, so that it does not expire in the middle of a batch."""
RENEWAL_DELAY_MS: Final = 5_000
"""Delay before a failed background renewal is retried."""
_TRIES: Final = 8
_BROKEN_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class VaultContext:
    """What the keys of all tenants share."""

    store: DataKeyStore
    kms_by_name: Mapping[str, Kms]
    clock: Clock
    random_bytes: Callable[[int], bytes]
    settings: VaultSettings
    cache: KeyCache
    spawn: Spawn

    def kms(self, ref: KeyRef) -> Kms:
        """Return the key management system of a key. Raises KmsError if the provider is not configured."""
        kms = self.kms_by_name.get(ref.provider)
        if kms is None:
            raise KmsError(f"The server has no key management system {ref.provider!r}. Configure it in [kms].")
        return kms


class TenantKeys:
    """The keys of one tenant."""

    def __init__(self, tenant_id: int, context: VaultContext) -> None:
        self.tenant_id = tenant_id
        self.held = context.cache.of(tenant_id)  # keys in memory
        self.policy: KeyPolicy | None = None
        self.current = NONE  # the number of the key that encrypts
        self.uses_left = 0  # reserved uses of the current key
        self.current_until = 0  # monotonic: no renewal is due before
        self.erased = False
        self.broken: set[int] = set()  # numbers that do not exist or cannot be unwrapped
        self._context = context
        self._wrapped: WrappedKey | None = None  # of the current key
        self._flights = SingleFlight(context.spawn)
        self._writing = asyncio.Lock()  # nothing may be written after the keys were destroyed
        self._renew_after = 0

    # ---- encryption ----

    def is_current(self, policy: KeyPolicy, uses: int) -> bool:
        """Return whether ``uses`` records can be encrypted and no renewal is due. Fast."""
        return (
            (self.policy is policy or self.policy == policy)
            and self.uses_left - uses >= self._low_uses
            and self._context.clock.monotonic_ms() < self.current_until
            and self.current in self.held
            and SECRET in self.held
        )

    async def prepare(self, policy: KeyPolicy, uses: int) -> None:
        """Wait until ``uses`` records can be encrypted. Other renewals run in the background."""
        for _ in range(_TRIES):
            self._raise_if_erased()
            self.policy = policy
            if self.current == NONE or not self.is_fresh(self.current) or not self.is_fresh(SECRET):
                await self._flights.join("begin", self._begin)
            elif self.uses_left < uses:
                await self._flights.join("reserve", self._reserve)
            else:
                self._renew()
                return
        raise KmsUnavailable(
            f"Cannot encrypt {uses} records now: data keys are used up faster than they are created. Try again later."
        )

    async def rotate(self) -> int:
        """Create a new data key, which encrypts from now on, and return its number."""
        self._raise_if_erased()
        await self._flights.join("rotate", self._rotate)
        return self.current

    # ---- decryption ----

    def is_fresh(self, number: int) -> bool:
        """Return whether a key is in memory and does not expire soon."""
        key = self.held.get(number)
        return key is not None and self._context.clock.monotonic_ms() + MARGIN_MS < key.expires_at

    async def load(self, numbers: set[int]) -> None:
        """Load keys into memory. Missing and damaged ones are added to ``broken``. Raises KmsUnavailable or KmsError."""
        self._raise_if_erased()
        missing = [number for number in numbers if not self.is_fresh(number)]
        if missing:
            found = await asyncio.gather(*(self._fetch(number) for number in missing), return_exceptions=True)
            for outcome in found:
                if isinstance(outcome, BaseException) and not isinstance(outcome, DecryptionFailed):
                    raise outcome
        now = self._context.clock.monotonic_ms()
        for number in numbers:
            self._renew_if_due(number, now)

    # ---- rewrapping and destruction ----

    async def rewrap(self, ref: KeyRef) -> int:
        """Wrap every key again with ``ref`` and return how many. Messages are not touched and work continues."""
        done: set[int] = set()
        for _ in range(_TRIES):
            self._raise_if_erased()
            todo = sorted(set(await self._context.store.list(self.tenant_id)) - done)
            if not todo:
                return len(done)
            for number in todo:
                await self._rewrap(number, ref)
                done.add(number)
        raise KmsUnavailable("New data keys are created faster than they are rewrapped. Try again later.")

    async def shred(self) -> int:
        """Drop the keys from memory, destroy them in the store and return how many there were."""
        self.erased = True
        self._context.cache.forget(self.tenant_id)
        self.current, self.uses_left, self.current_until, self._wrapped = NONE, 0, 0, None
        async with self._writing:
            try:
                return await self._context.store.drop_all(self.tenant_id)
            except StoreFailed:
                raise  # it is unknown whether they are gone
            except TenantqError:
                self.erased = False  # refused, for example by a legal hold: the keys work as before
                raise

    # ---- creation and unwrapping ----

    async def _begin(self) -> None:
        """Load the secret and the newest data key, or create them."""
        policy = self.policy
        assert policy is not None
        for _ in range(_TRIES):
            listed = await self._context.store.list(self.tenant_id)
            number = self._context.store.next_number(self.tenant_id)
            if number and not listed:
                raise Erased
            if SECRET not in listed:
                await self._make(SECRET, policy.key)
            elif len(listed) == 1:
                await self._make(number, policy.key)
            else:
                break
        else:
            raise KmsUnavailable("Cannot create the tenant's data keys. Try again later.")
        newest = max(listed)
        missing = [number for number in (SECRET, newest) if not self.is_fresh(number)]
        await asyncio.gather(*(self._fetch(number) for number in missing))
        if newest > self.current:
            await self._adopt(newest)

    async def _rotate(self) -> None:
        listed = await self._context.store.list(self.tenant_id)
        newest = max(listed, default=NONE)
        if newest == NONE:
            raise Invalid("encryption: the tenant has no data keys yet. The first encrypted message creates them.")
        number = self._context.store.next_number(self.tenant_id)
        if number > NUMBER_MAX:
            raise KmsError("The tenant has used all data key numbers.")
        ref = self.policy.key if self.policy is not None else listed[newest].key
        if not await self._make(number, ref):
            await self._adopt(number)  # another process was faster; its key is as new

    async def _rotate_if_due(self) -> None:
        """Adopt the key of another process that has rotated already, else rotate."""
        listed = await self._context.store.list(self.tenant_id)
        newest = max(listed, default=NONE)
        if newest > self.current and self._due_in_ms(listed[newest]) > 0:
            await self._adopt(newest)
        else:
            await self._rotate()

    async def _adopt(self, number: int) -> None:
        """Encrypt with a stored key once uses of it are reserved."""
        if not self.is_fresh(number):
            await self._fetch(number)
        reserved, more = await self._reserve_uses(number)
        self._encrypt_with(reserved, uses_left=more)

    def _due_in_ms(self, wrapped: WrappedKey) -> int:
        """Return how long a key may encrypt until a new one is due."""
        policy = self.policy
        if policy is None or wrapped.key != policy.key:
            return 0
        return wrapped.created_at + policy.rotate_every_ms - self._context.clock.wall_ms()

    async def _make(self, number: int, ref: KeyRef) -> bool:
        """Create a key, store it wrapped and cache it. Returns False if the number exists."""
        context = self._context
        started = context.clock.monotonic_ms()
        plain = context.random_bytes(KEY_BYTES)
        wrapped = await self._wrap(number, ref, plain)
        settings = context.settings
        uses = min(settings.uses_reserved, settings.uses_max) if number != SECRET else 0
        created = WrappedKey(number, ref, wrapped, context.clock.wall_ms(), uses)
        if not await self._write(lambda: context.store.put(self.tenant_id, created)):
            return False
        self._hold(number, plain, started)
        if number != SECRET:
            self._encrypt_with(created, uses_left=uses)
            log.info(
                "tenant %d: data key %d encrypts from now on",
                self.tenant_id,
                number,
                extra={"tenant_id": self.tenant_id},
            )
        return True

    async def _wrap(self, number: int, ref: KeyRef, plain: bytes) -> bytes:
        """Return ``plain`` wrapped. Checks that it unwraps, because a lost key would lose its messages."""
        kms, context = self._context.kms(ref), self._wrap_context(number)
        wrapped = await kms.wrap(ref.key, plain, context)
        if not hmac.compare_digest(await kms.unwrap(ref.key, wrapped, context), plain):
            raise KmsError(f"{ref.provider}: the key unwraps to different bytes than it wrapped. It is not used.")
        return wrapped

    async def _fetch(self, number: int) -> None:
        await self._flights.join(number, lambda: self._unwrap(number))

    async def _unwrap(self, number: int) -> None:
        started = self._context.clock.monotonic_ms()
        try:
            self._hold(number, await self._unwrapped(number), started)
        except DecryptionFailed:
            if len(self.broken) >= _BROKEN_MAX:
                self.broken.clear()
            self.broken.add(number)
            raise

    async def _unwrapped(self, number: int) -> bytes:
        listed = await self._context.store.list(self.tenant_id)
        wrapped = listed.get(number)
        if wrapped is None:
            raise DecryptionFailed(f"Data key {number} does not exist.") if listed else Erased
        if number == self.current < max(listed):
            self._in_background("rotate", self._rotate_if_due)  # another process has rotated
        ref = wrapped.key
        return await self._context.kms(ref).unwrap(ref.key, wrapped.wrapped, self._wrap_context(number))

    def _hold(self, number: int, plain: bytes, since: int) -> None:
        """Cache a key. Its age counts from before the call that unwrapped it."""
        self._raise_if_erased()
        if len(plain) != KEY_BYTES:
            raise DecryptionFailed(f"Data key {number} has the wrong length.")
        kind = TenantSecret if number == SECRET else DataKey
        key: PlainKey = kind(self.tenant_id, number, plain)
        age_max_ms = self._context.settings.key_age_max_ms
        # Between 70 and 80 % of the age, so that keys unwrapped together after a start are not renewed together.
        key.refresh_at = since + age_max_ms * 7 // 10 + age_max_ms * self._context.random_bytes(1)[0] // 2_560
        key.expires_at = since + age_max_ms
        self._context.cache.keep(key)
        self.broken.discard(number)

    def _wrap_context(self, number: int) -> dict[str, str]:
        return {"tenantq": "data-key", "tenant": str(self.tenant_id), "number": str(number)}

    # ---- uses ----

    async def _reserve(self) -> None:
        """Reserve more uses of the current key, or create a new key if its uses are exhausted."""
        number = self.current
        _, more = await self._reserve_uses(number)
        if not more:
            await self._flights.join("rotate", self._rotate)
        elif self.current == number:
            self.uses_left += more

    async def _reserve_uses(self, number: int) -> tuple[WrappedKey, int]:
        """Reserve more uses of a key in the store and return how many; 0: they are exhausted."""
        settings, more = self._context.settings, 0

        async def reserve(stored: WrappedKey) -> WrappedKey:
            nonlocal more
            more = max(0, min(settings.uses_reserved, settings.uses_max - stored.uses))
            return msgspec.structs.replace(stored, uses=stored.uses + more)

        return await self._update(number, reserve), more

    def _encrypt_with(self, wrapped: WrappedKey, *, uses_left: int) -> None:
        self._raise_if_erased()
        self.current, self.uses_left, self._wrapped = wrapped.number, uses_left, wrapped
        self.current_until = 0

    @property
    def _low_uses(self) -> int:
        return self._context.settings.uses_reserved // 2

    # ---- writing ----

    async def _write(self, write: Callable[[], Awaitable[bool]]) -> bool:
        async with self._writing:
            self._raise_if_erased()
            return await write()

    async def _replace(self, old: WrappedKey, new: WrappedKey) -> bool:
        done = await self._write(lambda: self._context.store.replace(self.tenant_id, old, new))
        if done and self.current == new.number and not self.erased:
            self._wrapped = new
        return done

    async def _update(self, number: int, change: Callable[[WrappedKey], Awaitable[WrappedKey]]) -> WrappedKey:
        """Replace a stored key by its changed version and return that. Retries if the key was changed meanwhile."""
        for _ in range(_TRIES):
            stored = (await self._context.store.list(self.tenant_id)).get(number)
            if stored is None:
                raise Erased
            changed = await change(stored)
            if changed == stored or await self._replace(stored, changed):
                return changed
        raise KmsUnavailable(f"Cannot change data key {number}: other servers keep changing it. Try again later.")

    async def _rewrap(self, number: int, ref: KeyRef) -> None:
        before = fresh = b""

        async def rewrap(stored: WrappedKey) -> WrappedKey:
            nonlocal before, fresh
            if stored.wrapped != before:  # else only its uses changed
                before, fresh = stored.wrapped, await self._wrap(number, ref, await self._unwrapped(number))
            return msgspec.structs.replace(stored, key=ref, wrapped=fresh)

        await self._update(number, rewrap)

    # ---- background renewal ----

    def _renew(self) -> None:
        """Start renewals that are due, without waiting."""
        wrapped = self._wrapped
        assert wrapped is not None
        now = self._context.clock.monotonic_ms()
        if now < self._renew_after:
            self.current_until = self._renew_after
            return
        due_in = self._due_in_ms(wrapped)
        if due_in <= 0:
            self._in_background("rotate", self._rotate_if_due)
        elif self.uses_left < self._low_uses:
            self._in_background("reserve", self._reserve)
        for number in (SECRET, self.current):
            self._renew_if_due(number, now)
        refresh_at = min(self.held[SECRET].refresh_at, self.held[self.current].refresh_at)
        self.current_until = 0 if self._flights else min(refresh_at, now + due_in)

    def _renew_if_due(self, number: int, now: int) -> None:
        key = self.held.get(number)
        if key is not None and now >= key.refresh_at and now >= self._renew_after:
            self._in_background(number, lambda: self._unwrap(number))

    def _in_background(self, name: str | int, work: JointWork) -> None:
        if name not in self._flights:
            self._flights.begin(name, work).add_done_callback(self._renewal_done)

    def _renewal_done(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        self._renew_after = self._context.clock.monotonic_ms() + RENEWAL_DELAY_MS
        if not self.erased:
            log.warning(
                "tenant %d: cannot renew the data keys, retrying: %s",
                self.tenant_id,
                error,
                extra={"tenant_id": self.tenant_id},
            )

    def _raise_if_erased(self) -> None:
        if self.erased:
            raise Erased
