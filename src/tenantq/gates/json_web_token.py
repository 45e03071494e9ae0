"""JSON web tokens: verifies signature and times, and returns the principal.

The signature is verified first; nothing in a token is trusted before. An invalid token is Unauthenticated, always with the
same text. A valid token that does not name exactly one tenant is Forbidden. No error contains anything of the token.
"""

import base64
import json
import logging
import re
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import jwt
import msgspec

from tenantq.domain.access import ACTIONS, ROLES, Grant, Principal
from tenantq.domain.limits import TIME_MS_MAX
from tenantq.domain.names import check_tenant_name
from tenantq.domain.urls import check_secure_url
from tenantq.domain.validation import about, between, build, items, validated
from tenantq.errors import Forbidden, Invalid, Unauthenticated
from tenantq.gates.key_set import KeyFile, KeyUrl, VerificationKeySource
from tenantq.gates.verification_key import PUBLIC_ALGORITHMS, SHARED_ALGORITHM, parse_key_set, parse_secrets
from tenantq.runtime.clock import Clock

log = logging.getLogger("tenantq")

_THREE_PARTS: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_TEXT_CHARS_MAX: Final = 256
_NO_ONE_TENANT: Final = (
    "The token does not name exactly one tenant: its tenant claim is missing, malformed or contradicted by another. "
    "Get a token that names one."
)
_MALFORMED_CLAIM: Final = "A claim of the token is malformed or duplicated. Get a token with well-formed claims."
_NotEmpty = Annotated[str, msgspec.Meta(min_length=1)]


class JwtSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tokens are accepted, and the names of their claims."""

    algorithms: Annotated[tuple[str, ...], about("Algorithms of public keys; a secret file adds HS256.")] = (
        "RS256",
        "ES256",
        "EdDSA",
    )
    issuer: Annotated[_NotEmpty, about("Accepted issuer. Default: any.")] | None = None
    audience: Annotated[_NotEmpty, about("Accepted audience. Default: only tokens without one.")] | None = None
    leeway_s: Annotated[int, between(0, 3_600, "Tolerated difference from the issuer's clock.")] = 30
    secret_file: Annotated[str, about("Shared secrets for HS256, one per line.")] | None = None
    jwks_file: Annotated[str, about("File with the public keys.")] | None = None
    jwks_url: Annotated[str, about("Address of the public keys, instead of a file.")] | None = None
    jwks_refresh_s: Annotated[int, between(10, 86_400, "How often the keys are fetched from jwks_url.")] = 300
    jwks_stale_s: Annotated[
        int, between(10, 30 * 86_400, "How long the last good keys are used when none can be fetched.")
    ] = 3_600
    tenant_claims: Annotated[tuple[_NotEmpty, ...], items(1, 16, "Claim of the tenant, then its aliases.")] = (
        "tenant",
    )
    role_claim: Annotated[_NotEmpty, about("Claim of the role: text or a list.")] = "role"
    scope_claim: Annotated[_NotEmpty, about("Claim of the actions, separated by spaces.")] = "scope"
    queues_claim: Annotated[_NotEmpty, about("Claim of the queue patterns, a list.")] = "queues"
    platform_admin: Annotated[bool, about("Accept the role platform-admin in tokens without a tenant.")] = False
    token_bytes_max: Annotated[int, between(256, 65_536, "Longest token.")] = 8_192
    cache_max: Annotated[int, between(1, 10_000_000, "Verified tokens kept in memory.")] = 10_000

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if self.jwks_stale_s < self.jwks_refresh_s:
            raise Invalid("jwks_stale_s: must not be less than jwks_refresh_s")
        if self.jwks_file is not None and self.jwks_url is not None:
            raise Invalid("jwks_file, jwks_url: only one of them can be set")
        if self.jwks_file is None and self.jwks_url is None and self.secret_file is None:
            raise Invalid("jwks_file, jwks_url, secret_file: one of them is required to verify tokens")
        if self.jwks_url is not None:
            check_secure_url("jwks_url", self.jwks_url)
        for algorithm in self.algorithms:
            if algorithm not in PUBLIC_ALGORITHMS and algorithm != SHARED_ALGORITHM:
                known = ", ".join([*sorted(PUBLIC_ALGORITHMS), SHARED_ALGORITHM])
                raise Invalid(f"algorithms: unknown algorithm ({algorithm[:40]!r}, allowed: {known})")
        if SHARED_ALGORITHM in self.algorithms and self.secret_file is None:
            raise Invalid(f"algorithms: {SHARED_ALGORITHM} requires secret_file")
        names = (*self.tenant_claims, self.role_claim, self.scope_claim, self.queues_claim)
        if len(set(names)) < len(names):
            raise Invalid("tenant_claims, role_claim, scope_claim, queues_claim: each name can be used only once")


class VerifiedToken(msgspec.Struct, frozen=True):
    """A valid token: its principal, its ID for revocation, and the generation of keys it was verified with."""

    principal: Principal
    token_id: str | None
    generation: int


class JwtVerifier:
    """Verifies tokens with the configured keys, which are read again regularly; see KeyFile and KeyUrl."""

    def __init__(self, settings: JwtSettings, clock: Clock) -> None:
        """Check the settings and read the files they name. Raises Invalid."""
        self.settings = validated(settings)
        self._clock = clock
        self._sources: dict[str, VerificationKeySource] = {}  # by algorithm: the only source of its keys
        stale_s = settings.jwks_stale_s
        if settings.jwks_url is not None:
            public: VerificationKeySource = KeyUrl(
                settings.jwks_url, clock, refresh_s=settings.jwks_refresh_s, stale_s=stale_s
            )
            self._sources.update(dict.fromkeys(settings.algorithms, public))
        elif settings.jwks_file is not None:
            public = KeyFile("jwks_file", Path(settings.jwks_file), parse_key_set, clock, stale_s=stale_s)
            self._sources.update(dict.fromkeys(settings.algorithms, public))
        if settings.secret_file is not None:
            secrets = KeyFile("secret_file", Path(settings.secret_file), parse_secrets, clock, stale_s=stale_s)
            self._sources[SHARED_ALGORITHM] = secrets  # replaces the key set if that was configured for it
        self._distinct_sources = tuple(dict.fromkeys(self._sources.values()))

    def current_generation(self) -> int:
        """Check for new keys, if it is time, and return a number that grows with every change."""
        generation = 0
        for source in self._distinct_sources:
            source.look()
            generation += source.generation
        return generation

    def close(self) -> None:
        """Stop fetching keys."""
        for source in self._distinct_sources:
            source.close()

    async def verify(self, token: str) -> VerifiedToken:
        """Return the verified token. Raises Unauthenticated, Forbidden, or Unavailable while no keys are available."""
        if len(token) > self.settings.token_bytes_max or _THREE_PARTS.fullmatch(token) is None:
            _refuse("it is too long or not three parts of base64")
        algorithm, key_id = _header(token)
        source = self._sources.get(algorithm)
        if source is None:
            _refuse("its algorithm is not accepted")
        keys = await source.find(algorithm, key_id)
        generation = self._generation()  # that of the keys just found
        for key in keys:
            try:
                payload = _JWS.decode(token, key.key, algorithms=[algorithm])
                break
            except jwt.PyJWTError:
                continue
        else:
            _refuse("no key verifies its signature")
        claims = _claims(payload)
        expires_at = self._check_times(claims)
        self._check_issuer_and_audience(claims)
        subject = _text(claims, "sub")
        if subject is None:
            _refuse("it has no sub")
        token_id = _text(claims, "jti")
        tenant, grants = self._tenant(claims), self._grants(claims)
        if tenant is None and not any(grant.role == "platform-admin" for grant in grants):
            raise Forbidden(_NO_ONE_TENANT)
        return VerifiedToken(Principal(f"jwt:{subject}", tenant, grants, expires_at), token_id, generation)

    def _generation(self) -> int:
        return sum(source.generation for source in self._distinct_sources)

    def _check_times(self, claims: dict[str, Any]) -> int:
        """Return the wall time in ms at which the token expires."""
        leeway_ms = self.settings.leeway_s * 1_000
        now = self._clock.wall_ms()
        end = _time_ms(claims, "exp")
        if end is None:
            _refuse("it has no exp")
        if end + leeway_ms <= now:
            _refuse("it has expired")
        for name in ("nbf", "iat"):
            begin = _time_ms(claims, name)
            if begin is not None and begin - leeway_ms > now:
                _refuse("it is not valid yet")
        return end + leeway_ms

    def _check_issuer_and_audience(self, claims: dict[str, Any]) -> None:
        if self.settings.issuer is not None and claims.get("iss") != self.settings.issuer:
            _refuse("it is of another issuer")
        named = claims.get("aud", [])
        audiences = named if isinstance(named, list) else [named]
        if not all(type(audience) is str for audience in audiences):
            _refuse("its audience is malformed")
        if self.settings.audience is None:
            if audiences:
                _refuse("it names an audience and none is configured here")
        elif self.settings.audience not in audiences:
            _refuse("it is for another audience")

    def _tenant(self, claims: dict[str, Any]) -> str | None:
        """Return the tenant that all claims of the tenant name, or None if there are none."""
        named = [claims[name] for name in self.settings.tenant_claims if name in claims]
        if not named:
            return None
        try:
            tenants = {check_tenant_name(name) for name in named}
        except Invalid:
            raise Forbidden(_NO_ONE_TENANT) from None
        if len(tenants) > 1:
            raise Forbidden(_NO_ONE_TENANT)
        return tenants.pop()

    def _grants(self, claims: dict[str, Any]) -> tuple[Grant, ...]:
        """Return the grants in the token. Unknown roles and scopes are ignored."""
        queues = claims.get(self.settings.queues_claim, ["*"])
        if not isinstance(queues, list):
            raise Forbidden(_MALFORMED_CLAIM)
        granted: list[dict[str, Any]] = [
            {"role": role, "queues": queues}
            for role in dict.fromkeys(_words(claims, self.settings.role_claim))
            if role in ROLES and (role != "platform-admin" or self.settings.platform_admin)
        ]
        scopes = dict.fromkeys(_words(claims, self.settings.scope_claim))
        actions = tuple(action for action in scopes if action in ACTIONS)
        if actions:
            granted.append({"actions": actions, "queues": queues})
        try:
            return tuple(build(Grant, one) for one in granted)
        except Invalid:
            raise Forbidden(_MALFORMED_CLAIM) from None


_JWS: Final = jwt.PyJWS()


def _refuse(reason: str) -> NoReturn:
    log.debug("a token is refused: %s", reason)
    raise Unauthenticated


class _Twice(ValueError):
    """A duplicate key in a JSON object: readers may disagree on which one counts."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice
    return found


def _no_constant(_: str) -> NoReturn:
    raise ValueError  # NaN and Infinity are not JSON


def _read_object(raw: bytes) -> dict[str, Any]:
    found = json.loads(raw.decode(), object_pairs_hook=_object, parse_constant=_no_constant)
    if not isinstance(found, dict):
        raise TypeError
    return found


def _header(token: str) -> tuple[str, str | None]:
    """Return the algorithm and key ID of a token's unverified header."""
    part = token.partition(".")[0]
    try:
        header = _read_object(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, TypeError, RecursionError):
        _refuse("its header is malformed")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if type(algorithm) is not str or not (key_id is None or type(key_id) is str):
        _refuse("its header is malformed")
    if "crit" in header or "b64" in header:
        _refuse("its header asks for what is not supported here")
    return algorithm, key_id


def _claims(payload: bytes) -> dict[str, Any]:
    try:
        return _read_object(payload)
    except _Twice:
        raise Forbidden(_MALFORMED_CLAIM) from None
    except (ValueError, TypeError, RecursionError):
        _refuse("its claims are malformed")


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    if name not in claims:
        return None
    value = claims[name]
    if type(value) not in {int, float} or not 0 <= value <= TIME_MS_MAX // 1_000:
        _refuse("one of its times is malformed")
    return int(value * 1_000)


def _text(claims: dict[str, Any], name: str) -> str | None:
    if name not in claims:
        return None
    value = claims[name]
    if type(value) is not str or not 1 <= len(value) <= _TEXT_CHARS_MAX or not value.isprintable():
        _refuse("its sub or jti is malformed")
    return value


def _words(claims: dict[str, Any], name: str) -> list[str]:
    """Return the entries of a claim: text separated by spaces, or a list of texts."""
    value = claims.get(name, [])
    words = value.split(" ") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(type(word) is str for word in words):
        raise Forbidden(_MALFORMED_CLAIM)
    return words
