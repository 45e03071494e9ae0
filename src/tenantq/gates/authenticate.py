"""Authentication: from the key, token or certificate of a request to a principal.

Verified credentials are cached by their hash, so that a repeated one costs a hash and a look-up. A cached credential becomes
invalid when it expires, when stored keys or revocations change, and when the keys that sign tokens change.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol

from tenantq.domain.access import Grant, Principal, StoredKey
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.errors import Forbidden, TenantqError, Unauthenticated
from tenantq.gates.api_key import TOKEN_CHARS_MAX, ApiKeySource, check_key, find_key, key_principal, token_hash
from tenantq.gates.certificate import CertificateMap
from tenantq.runtime.bounded_dict import BoundedDict
from tenantq.runtime.clock import Clock
from tenantq.runtime.futures import BackgroundTasks

if TYPE_CHECKING:
    from tenantq.gates.json_web_token import JwtVerifier

log = logging.getLogger("tenantq")

ANONYMOUS: Final = Principal("anonymous", DEFAULT_TENANT, (Grant(role="producer"), Grant(role="consumer")))
"""The caller without a credential, if the server allows it."""

CACHE_MAX: Final = 10_000
_NEVER: Final = 1 << 62
_NO_GENERATION: Final = -1
_DOTS: Final = 2  # of a JSON web token
_ASK: Final = -1  # version of a source that was not queried yet
_OF_ANOTHER: Final = -2  # version of another shard's source, trusted for a short time
REMOTE_TRUST_MS: Final = 500
"""How long another shard's answer about a credential is trusted. A key in use is asked for again after half of it, so that its
callers do not notice a shard that changes its owner."""
_TWO_TENANTS: Final = "The token and the certificate belong to different tenants. Send credentials of one tenant."


class CredentialSource(ApiKeySource, Protocol):
    """What authentication needs of the store of keys and revocations."""

    @property
    def version(self) -> int:
        """A number that grows with every change of keys and revocations."""

    def token_revoked(self, tenant: str | None, token_id: str | None, principal: str, now_ms: int) -> bool:
        """Return whether the token of this ID, or every credential of this principal, is revoked."""


class OtherShardCredentials(Protocol):
    """Credentials that other shards of the same server have."""

    def is_here(self, tenant: str | None) -> bool:
        """Return whether this shard stores the revocations of a tenant."""

    async def key(self, hash: bytes) -> StoredKey | None:
        """Return the key of this hash from another shard, revoked or not. Raises Unavailable if a shard cannot be asked."""

    async def token_revoked(self, tenant: str, token_id: str | None, principal: str) -> bool:
        """Ask the tenant's own shard whether a token is revoked."""


class _Verified:
    """A verified credential, and the versions it was verified against."""

    __slots__ = (
        "believed_until_ms", "expires_at", "generation", "key_id", "principal", "refreshing", "token_id", "version",
    )  # fmt: skip

    def __init__(
        self,
        principal: Principal,
        version: int,
        *,
        key_id: str | None = None,
        token_id: str | None = None,
        generation: int = _NO_GENERATION,
    ) -> None:
        self.principal = principal
        self.expires_at = _NEVER if principal.expires_at is None else principal.expires_at
        self.version = version  # of the source, when last asked
        self.key_id = key_id  # None: not an API key
        self.token_id = token_id
        self.generation = generation  # of the keys that sign tokens
        self.believed_until_ms = 0  # monotonic clock, if another shard has answered
        self.refreshing = generation != _NO_GENERATION  # the other shard is asked again; only for keys

    def believe(self, now_ms: int) -> None:
        """Trust it for a short time only, because another shard has answered."""
        self.version = _OF_ANOTHER
        self.believed_until_ms = now_ms + REMOTE_TRUST_MS


_UNKNOWN: Final = _Verified(ANONYMOUS, _ASK)


class Authenticator:
    """Turns credentials into principals."""

    def __init__(
        self,
        source: CredentialSource,
        clock: Clock,
        jwt: JwtVerifier | None = None,
        certificates: CertificateMap | None = None,
        *,
        anonymous_default: bool = False,
    ) -> None:
        self._source = source
        self._clock = clock
        self._jwt = jwt
        self._certificates = certificates
        self._anonymous = anonymous_default
        self._key_generation = jwt.current_generation if jwt is not None else lambda: _NO_GENERATION
        most = CACHE_MAX if jwt is None else jwt.settings.cache_max
        self._chars_max = TOKEN_CHARS_MAX if jwt is None else max(TOKEN_CHARS_MAX, jwt.settings.token_bytes_max)
        self._tokens: BoundedDict[bytes, _Verified] = BoundedDict(most)  # by hash; least recently used first
        self._holders: BoundedDict[object, _Verified | None] = BoundedDict(most)  # of certificates, by names and end
        self._cleared: BoundedDict[str, int] = BoundedDict(
            most
        )  # principals of certificates: until when they are trusted
        self.other_shards: OtherShardCredentials | None = None  # set if there are several shards
        self.last_used: dict[str, int] = {}  # key ID: wall clock; cleared when stored
        self._refreshing = BackgroundTasks()

    def cached(self, bearer: str | None, certificate: Mapping[str, Any] | None) -> Principal | None:
        """Return the principal if these credentials are cached and still valid; None: use ``authenticate``."""
        if bearer is None:
            return self._without_bearer(certificate)
        if len(bearer) > self._chars_max:
            return None
        try:
            hash = sha256(bearer.encode()).digest()
        except UnicodeEncodeError:
            return None
        verified = self._tokens.get(hash)
        if verified is None:
            return None
        now = self._clock.wall_ms()
        if (
            now >= verified.expires_at
            or (verified.version != self._source.version and not self._still_holds(verified, hash, now))
            or (verified.generation != _NO_GENERATION and verified.generation != self._key_generation())
        ):
            del self._tokens[hash]
            return None
        if certificate:
            try:
                self._check_same_tenant(verified.principal, certificate)
            except (Unauthenticated, Forbidden):
                return None
        self._tokens.move_to_end(hash)
        if verified.key_id is not None:
            self.last_used[verified.key_id] = now
        return verified.principal

    async def authenticate(self, bearer: str | None, certificate: Mapping[str, Any] | None) -> Principal:
        """Return the principal.

        A bearer token takes precedence over a certificate, and must belong to the same tenant. Raises Unauthenticated, always
        with the same text; Forbidden, if the credential does not belong to exactly one tenant; KeySuspended; Unavailable, while
        the keys that sign tokens are not available.
        """
        principal = self.cached(bearer, certificate)
        if principal is not None:
            return principal
        if bearer is None:
            principal = self._holder(certificate) if certificate else None
            if principal is None:
                raise Unauthenticated
            if self.other_shards is not None and not self.other_shards.is_here(principal.tenant):
                await self._clear(principal)
            return principal
        principal = await self._bearer(bearer)
        if certificate:
            self._check_same_tenant(principal, certificate)
        return principal

    def _without_bearer(self, certificate: Mapping[str, Any] | None) -> Principal | None:
        if certificate and self._certificates is not None:
            try:
                principal = self._holder(certificate)
            except (Unauthenticated, Forbidden):
                return None
            return principal if principal is None or self._is_clear(principal) else None
        return ANONYMOUS if self._anonymous else None

    # ---- tokens ----

    async def _bearer(self, bearer: str) -> Principal:
        if len(bearer) > self._chars_max:
            raise Unauthenticated
        try:
            hash = sha256(bearer.encode()).digest()
        except UnicodeEncodeError:
            raise Unauthenticated from None
        now = self._clock.wall_ms()
        key = find_key(self._source, hash, now)
        if key is not None:
            self.last_used[key.id] = now
            verified = _Verified(key_principal(key), self._source.version, key_id=key.id)
            self._tokens[hash] = verified
            return verified.principal
        if self._jwt is None or (self.other_shards is not None and bearer.count(".") != _DOTS):
            return await self._key_of_other_shard(hash)
        token = await self._jwt.verify(bearer)
        verified = _Verified(
            token.principal, self._source.version, token_id=token.token_id, generation=token.generation
        )
        if self._revoked(verified, self._clock.wall_ms()):
            raise Unauthenticated
        tenant = verified.principal.tenant
        if self.other_shards is not None and tenant is not None and not self.other_shards.is_here(tenant):
            if await self.other_shards.token_revoked(tenant, token.token_id, token.principal.id):
                raise Unauthenticated
            verified.believe(self._clock.monotonic_ms())
        self._tokens[hash] = verified
        return verified.principal

    # ---- other shards ----

    async def stores(self, token: str) -> bool:
        """Return whether a token belongs to a stored key, of any shard, revoked or not. Raises Unavailable if a shard cannot be asked.

        Whoever asks need not hold the token.
        """
        hash = token_hash(token)
        if self._source.key(hash) is not None:
            return True
        return self.other_shards is not None and await self.other_shards.key(hash) is not None

    async def _key_of_other_shard(self, hash: bytes) -> Principal:
        """Return the principal of another shard's key. It is trusted for a short time only, because it may be revoked there."""
        key = await self.other_shards.key(hash) if self.other_shards is not None else None
        now = self._clock.wall_ms()
        if key is None:
            raise Unauthenticated
        check_key(key, now)
        verified = _Verified(key_principal(key), self._source.version)
        verified.believe(self._clock.monotonic_ms())
        self._tokens[hash] = verified
        return verified.principal

    async def _refresh(self, hash: bytes) -> None:
        """Ask again for another shard's key. Without an answer the last one counts until its time is over."""
        try:
            await self._key_of_other_shard(hash)
        except (Unauthenticated, Forbidden):
            self._tokens.pop(hash, None)
        except TenantqError as error:
            log.debug("a key was not confirmed: %s", error)

    async def _clear(self, principal: Principal) -> None:
        """Raise Unauthenticated if the tenant's own shard has revoked the holder of a certificate."""
        assert self.other_shards is not None
        assert principal.tenant is not None
        if await self.other_shards.token_revoked(principal.tenant, None, principal.id):
            raise Unauthenticated
        self._cleared[principal.id] = self._clock.monotonic_ms() + REMOTE_TRUST_MS

    def _is_clear(self, principal: Principal) -> bool:
        if self.other_shards is None or self.other_shards.is_here(principal.tenant):
            return True
        return self._cleared.get(principal.id, 0) > self._clock.monotonic_ms()

    # ---- validity ----

    def _still_holds(self, verified: _Verified, hash: bytes, now: int) -> bool:
        """Check the source again, which has changed, or whether another shard's answer is still trusted."""
        if verified.version == _OF_ANOTHER:
            left_ms = verified.believed_until_ms - self._clock.monotonic_ms()
            if 0 < left_ms <= REMOTE_TRUST_MS // 2 and not verified.refreshing:
                verified.refreshing = True
                self._refreshing.start(self._refresh(hash))
            return left_ms > 0 and not self._revoked(verified, now)
        if verified.key_id is None:
            is_here = self.other_shards is None or self.other_shards.is_here(verified.principal.tenant)
            holds = is_here and not self._revoked(verified, now)
        else:
            try:
                key = find_key(self._source, hash, now)
            except (Unauthenticated, Forbidden):
                return False
            holds = key is not None and key_principal(key) == verified.principal
        verified.version = self._source.version
        return holds

    def _revoked(self, verified: _Verified, now: int) -> bool:
        principal = verified.principal
        return self._source.token_revoked(principal.tenant, verified.token_id, principal.id, now)

    # ---- certificates ----

    def _holder(self, certificate: Mapping[str, Any]) -> Principal | None:
        """Return the principal of a certificate, or None if it names no principal or certificates are not configured.

        Raises Unauthenticated if it has expired or is revoked, Forbidden if it names several tenants.
        """
        if self._certificates is None:
            return None
        names = (certificate.get("subjectAltName"), certificate.get("notAfter"))
        verified = self._holders.get(names, _UNKNOWN)
        if verified is _UNKNOWN:
            principal = self._certificates.find(certificate)
            verified = None if principal is None else _Verified(principal, _ASK)
            self._holders[names] = verified
        if verified is None:
            return None
        now = self._clock.wall_ms()
        if now >= verified.expires_at:
            raise Unauthenticated
        if verified.version != self._source.version:
            if self._revoked(verified, now):
                raise Unauthenticated
            verified.version = self._source.version
        return verified.principal

    def _check_same_tenant(self, principal: Principal, certificate: Mapping[str, Any]) -> None:
        """Raise Forbidden if the certificate belongs to another tenant than the token. An unknown certificate does not count."""
        holder = self._holder(certificate)
        if holder is not None and holder.tenant != principal.tenant:
            raise Forbidden(_TWO_TENANTS)
