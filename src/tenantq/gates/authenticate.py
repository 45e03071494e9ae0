"""Who calls: from what a request carries, a key, a token or a certificate, to a principal.

Credentials that were verified are remembered by a hash of them, so that a request with one costs a hash and a look-up. What
is remembered stops counting when the credential ends, when the book of keys and revocations says so, and when the keys that
sign tokens change.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol

from tenantq.domain.access import Grant, Principal
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.errors import Forbidden, Unauthenticated
from tenantq.gates.api_key import TOKEN_CHARS_MAX, KeyBook, find_key, is_over, key_principal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenantq.domain.access import StoredKey
    from tenantq.gates.certificate import CertificateMap
    from tenantq.gates.json_web_token import JwtVerifier
    from tenantq.runtime.clock import Clock

ANONYMOUS: Final = Principal("anonymous", DEFAULT_TENANT, (Grant(role="producer"), Grant(role="consumer")))
"""Who calls without a credential, where the server allows it."""

CACHE_MAX: Final = 10_000
_NEVER: Final = 1 << 62
_NO_GENERATION: Final = -1
_DOTS: Final = 2  # of a JSON web token
_ASK: Final = -1  # the version of a book that was not asked yet
_OF_ANOTHER: Final = -2  # that of another shard's book: what it said counts for a moment
ELSEWHERE_MS: Final = 500
"""How long it is believed what another shard has said of a credential."""
_TWO_TENANTS: Final = "The token and the certificate do not stand for the same tenant. Send credentials of one tenant."


class CredentialBook(KeyBook, Protocol):
    """What the gate asks of the book that keeps keys and revocations."""

    @property
    def version(self) -> int:
        """A number that grows with every change of keys and revocations."""

    def token_revoked(self, tenant: str | None, token_id: str | None, principal: str, now_ms: int) -> bool:
        """Tell whether a token of this id, or every credential of this principal, is revoked."""


class Elsewhere(Protocol):
    """Other shards of the same server, which know credentials that this one's book does not."""

    def is_here(self, tenant: str | None) -> bool:
        """Tell whether this shard's own book says what is revoked in a tenant."""

    async def key(self, hash: bytes) -> StoredKey | None:
        """Return the key of this hash that another shard has, revoked or not; Unavailable while one cannot be asked."""

    async def token_revoked(self, tenant: str, token_id: str | None, principal: str) -> bool:
        """Ask the tenant's own shard what its book would be asked."""


class _Verified:
    """A credential that was verified, and what has to stay true for that to count."""

    __slots__ = ("believed_until_ms", "expires_at", "generation", "key_id", "principal", "token_id", "version")

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
        self.version = version  # of the book, when it was last asked
        self.key_id = key_id  # None: not an API key
        self.token_id = token_id
        self.generation = generation  # of the keys that sign tokens
        self.believed_until_ms = 0  # by the monotonic clock, where another shard has said so

    def believe(self, now_ms: int) -> None:
        """Have it count for a moment only, since it is another shard's word."""
        self.version = _OF_ANOTHER
        self.believed_until_ms = now_ms + ELSEWHERE_MS


_UNKNOWN: Final = _Verified(ANONYMOUS, _ASK)


class Authenticator:
    """Turns credentials into principals."""

    def __init__(
        self,
        book: CredentialBook,
        clock: Clock,
        jwt: JwtVerifier | None = None,
        certificates: CertificateMap | None = None,
        *,
        anonymous_default: bool = False,
    ) -> None:
        self._book = book
        self._clock = clock
        self._jwt = jwt
        self._certificates = certificates
        self._anonymous = anonymous_default
        self._key_generation = jwt.current_generation if jwt is not None else lambda: _NO_GENERATION
        self._cache_max = CACHE_MAX if jwt is None else jwt.settings.cache_max
        self._chars_max = TOKEN_CHARS_MAX if jwt is None else max(TOKEN_CHARS_MAX, jwt.settings.token_bytes_max)
        self._tokens: OrderedDict[bytes, _Verified] = OrderedDict()  # by hash; the longest unused first
        self._holders: OrderedDict[object, _Verified | None] = OrderedDict()  # of certificates, by names and end
        self._cleared: dict[str, int] = {}  # principals of certificates: until when another shard's word counts
        self.elsewhere: Elsewhere | None = None  # set by who wires several shards
        self.last_used: dict[str, int] = {}  # key id: wall clock. Whoever stores it may clear it

    def cached(self, bearer: str | None, certificate: Mapping[str, Any] | None) -> Principal | None:
        """Return who calls, if these credentials were verified before and still hold; None: ask ``authenticate``."""
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
            or (verified.version != self._book.version and not self._still_holds(verified, hash, now))
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
        """Return who calls.

        A bearer token goes before a certificate, and has to be of the same tenant if the certificate stands for one. Raise
        Unauthenticated, with one text whatever is wrong with the credential; Forbidden, if it does not stand for exactly one
        tenant; Unavailable, while the keys that sign tokens cannot be had.
        """
        principal = self.cached(bearer, certificate)
        if principal is not None:
            return principal
        if bearer is None:
            principal = self._holder(certificate) if certificate else None
            if principal is None:
                raise Unauthenticated
            if self.elsewhere is not None and not self.elsewhere.is_here(principal.tenant):
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
        key = find_key(self._book, hash, now)
        if key is not None:
            self.last_used[key.id] = now
            verified = _Verified(key_principal(key), self._book.version, key_id=key.id)
            self._remember(self._tokens, hash, verified)
            return verified.principal
        if self._jwt is None or (self.elsewhere is not None and bearer.count(".") != _DOTS):
            return await self._key_elsewhere(hash)
        token = await self._jwt.verify(bearer)
        verified = _Verified(token.principal, self._book.version, token_id=token.token_id, generation=token.generation)
        if self._revoked(verified, self._clock.wall_ms()):
            raise Unauthenticated
        tenant = verified.principal.tenant
        if self.elsewhere is not None and tenant is not None and not self.elsewhere.is_here(tenant):
            if await self.elsewhere.token_revoked(tenant, token.token_id, token.principal.id):
                raise Unauthenticated
            verified.believe(self._clock.monotonic_ms())
        self._remember(self._tokens, hash, verified)
        return verified.principal

    # ---- what other shards know ----

    async def _key_elsewhere(self, hash: bytes) -> Principal:
        """Return whose key it is that another shard has. That is believed for a moment only: it may be revoked there."""
        key = await self.elsewhere.key(hash) if self.elsewhere is not None else None
        now = self._clock.wall_ms()
        if key is None or is_over(key, now):
            raise Unauthenticated
        verified = _Verified(key_principal(key), self._book.version)
        verified.believe(self._clock.monotonic_ms())
        self._remember(self._tokens, hash, verified)
        return verified.principal

    async def _clear(self, principal: Principal) -> None:
        """Raise Unauthenticated if the tenant's own shard says that a certificate's holder is revoked."""
        assert self.elsewhere is not None
        assert principal.tenant is not None
        if await self.elsewhere.token_revoked(principal.tenant, None, principal.id):
            raise Unauthenticated
        if len(self._cleared) >= self._cache_max:
            self._cleared.clear()
        self._cleared[principal.id] = self._clock.monotonic_ms() + ELSEWHERE_MS

    def _is_clear(self, principal: Principal) -> bool:
        if self.elsewhere is None or self.elsewhere.is_here(principal.tenant):
            return True
        return self._cleared.get(principal.id, 0) > self._clock.monotonic_ms()

    # ---- what holds still ----

    def _still_holds(self, verified: _Verified, hash: bytes, now: int) -> bool:
        """Ask the book again, which has changed since it was last asked; or see whether another shard's word still counts."""
        if verified.version == _OF_ANOTHER:
            return self._clock.monotonic_ms() < verified.believed_until_ms and not self._revoked(verified, now)
        if verified.key_id is None:
            is_here = self.elsewhere is None or self.elsewhere.is_here(verified.principal.tenant)
            holds = is_here and not self._revoked(verified, now)
        else:
            try:
                key = find_key(self._book, hash, now)
            except Unauthenticated:
                return False
            holds = key is not None and key_principal(key) == verified.principal
        verified.version = self._book.version
        return holds

    def _revoked(self, verified: _Verified, now: int) -> bool:
        principal = verified.principal
        return self._book.token_revoked(principal.tenant, verified.token_id, principal.id, now)

    def _remember(self, cache: OrderedDict[Any, Any], key: object, what: _Verified | None) -> None:
        cache[key] = what
        while len(cache) > self._cache_max:
            cache.popitem(last=False)

    # ---- certificates ----

    def _holder(self, certificate: Mapping[str, Any]) -> Principal | None:
        """Return who holds a certificate; None: its names stand for nobody, or none are looked at here.

        Raise Unauthenticated if it has ended or is revoked, Forbidden if it stands for several tenants.
        """
        if self._certificates is None:
            return None
        names = (certificate.get("subjectAltName"), certificate.get("notAfter"))
        verified = self._holders.get(names, _UNKNOWN)
        if verified is _UNKNOWN:
            principal = self._certificates.find(certificate)
            verified = None if principal is None else _Verified(principal, _ASK)
            self._remember(self._holders, names, verified)
        if verified is None:
            return None
        now = self._clock.wall_ms()
        if now >= verified.expires_at:
            raise Unauthenticated
        if verified.version != self._book.version:
            if self._revoked(verified, now):
                raise Unauthenticated
            verified.version = self._book.version
        return verified.principal

    def _check_same_tenant(self, principal: Principal, certificate: Mapping[str, Any]) -> None:
        """Raise Forbidden if the certificate stands for another tenant than the token; one of nobody does not count."""
        holder = self._holder(certificate)
        if holder is not None and holder.tenant != principal.tenant:
            raise Forbidden(_TWO_TENANTS)
