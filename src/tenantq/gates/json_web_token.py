"""JSON web tokens: who signed one, whether it holds now, and which principal it names.

The signature is verified first; nothing in a token is believed before. A token that does not hold is Unauthenticated, always
with the same text. One that holds but does not name exactly one tenant is Forbidden. No error shows anything of the token.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import jwt
import msgspec

from tenantq.domain.access import ACTIONS, ROLES, Grant, Principal, check_grant
from tenantq.domain.limits import TIME_MS_MAX
from tenantq.domain.message import check_int
from tenantq.domain.names import check_tenant_name
from tenantq.errors import Forbidden, Invalid, Unauthenticated
from tenantq.gates.key_set import KeyFile, KeyUrl, check_url
from tenantq.gates.verification_key import PUBLIC_ALGORITHMS, SHARED_ALGORITHM, parse_key_set, parse_secrets

if TYPE_CHECKING:
    from tenantq.gates.key_set import KeySource
    from tenantq.runtime.clock import Clock

log = logging.getLogger("tenantq")

_THREE_PARTS: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_TEXT_CHARS_MAX: Final = 256
_CLAIM_NAMES_MAX: Final = 16
_NO_ONE_TENANT: Final = (
    "The token does not name exactly one tenant: its tenant claim is missing, malformed or contradicted by another. "
    "Get a token that names one."
)
_MALFORMED_CLAIM: Final = "A claim of the token is malformed or there twice. Get a token with well-formed claims."


class JwtSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tokens are accepted, and what their claims are called."""

    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")  # of public keys; a secret file adds HS256
    issuer: str | None = None  # None: any
    audience: str | None = None  # None: only tokens that name none
    leeway_s: int = 30  # how far the issuer's clock may be off
    secret_file: str | None = None  # shared secrets for HS256, one a line
    jwks_file: str | None = None  # public keys: a file ...
    jwks_url: str | None = None  # ... or an address
    jwks_refresh_s: int = 300  # how often the address is asked
    jwks_stale_s: int = 3_600  # how long the last good keys are used when no new ones can be had
    tenant_claims: tuple[str, ...] = ("tenant",)  # the canonical one, then its aliases
    role_claim: str = "role"  # text or a list
    scope_claim: str = "scope"  # names of actions, with spaces between
    queues_claim: str = "queues"  # a list of patterns
    platform_admin: bool = False  # whether a token without a tenant may bring the role platform-admin
    token_bytes_max: int = 8_192
    cache_max: int = 10_000  # verified credentials that are remembered


_RANGES: Final = {
    "leeway_s": (0, 3_600),
    "jwks_refresh_s": (10, 86_400),
    "jwks_stale_s": (10, 30 * 86_400),
    "token_bytes_max": (256, 65_536),
    "cache_max": (1, 10_000_000),
}


def check_jwt(settings: JwtSettings) -> JwtSettings:
    """Return ``settings`` if each fits the others and its range, else raise Invalid naming the field."""
    for field, (low, high) in _RANGES.items():
        check_int(field, getattr(settings, field), low, high)
    if settings.jwks_stale_s < settings.jwks_refresh_s:
        raise Invalid("jwks_stale_s: it cannot be less than jwks_refresh_s")
    if settings.jwks_file is not None and settings.jwks_url is not None:
        raise Invalid("jwks_file, jwks_url: only one of them can be set")
    if settings.jwks_file is None and settings.jwks_url is None and settings.secret_file is None:
        raise Invalid("jwks_file, jwks_url, secret_file: one of them is needed to verify tokens")
    if settings.jwks_url is not None:
        check_url(settings.jwks_url)
    for algorithm in settings.algorithms:
        if algorithm not in PUBLIC_ALGORITHMS and algorithm != SHARED_ALGORITHM:
            known = ", ".join([*sorted(PUBLIC_ALGORITHMS), SHARED_ALGORITHM])
            raise Invalid(f"algorithms: {algorithm[:40]!r} is none of {known}")
    if SHARED_ALGORITHM in settings.algorithms and settings.secret_file is None:
        raise Invalid(f"algorithms: {SHARED_ALGORITHM} needs a secret_file")
    for field in ("issuer", "audience"):
        if getattr(settings, field) == "":
            raise Invalid(f"{field}: it cannot be empty; leave it out to accept any issuer or tokens without audience")
    if not 1 <= len(settings.tenant_claims) <= _CLAIM_NAMES_MAX:
        raise Invalid(f"tenant_claims: {len(settings.tenant_claims)} names, allowed are 1 to {_CLAIM_NAMES_MAX}")
    names = (*settings.tenant_claims, settings.role_claim, settings.scope_claim, settings.queues_claim)
    if "" in names or len(set(names)) < len(names):
        raise Invalid("tenant_claims, role_claim, scope_claim, queues_claim: names cannot be empty or used twice")
    return settings


class VerifiedToken(msgspec.Struct, frozen=True):
    """A token that holds: whom it names, its id for revoking it, and the generation of keys it was verified under."""

    principal: Principal
    token_id: str | None
    generation: int


class JwtVerifier:
    """Verifies tokens against the keys of the settings. Keys are read anew while it lives; see KeyFile and KeyUrl."""

    def __init__(self, settings: JwtSettings, clock: Clock) -> None:
        """Check the settings and read the files they name; raise Invalid if either is wrong."""
        self.settings = check_jwt(settings)
        self._clock = clock
        self._sources: dict[str, KeySource] = {}  # by algorithm: the one place its keys come from
        stale_s = settings.jwks_stale_s
        if settings.jwks_url is not None:
            public: KeySource = KeyUrl(settings.jwks_url, clock, refresh_s=settings.jwks_refresh_s, stale_s=stale_s)
            self._sources.update(dict.fromkeys(settings.algorithms, public))
        elif settings.jwks_file is not None:
            public = KeyFile("jwks_file", Path(settings.jwks_file), parse_key_set, clock, stale_s=stale_s)
            self._sources.update(dict.fromkeys(settings.algorithms, public))
        if settings.secret_file is not None:
            secrets = KeyFile("secret_file", Path(settings.secret_file), parse_secrets, clock, stale_s=stale_s)
            self._sources[SHARED_ALGORITHM] = secrets  # in place of the key set, should that have been listed for it
        self._distinct_sources = tuple(dict.fromkeys(self._sources.values()))

    def current_generation(self) -> int:
        """Look for new keys, if it is time, and return a number that grows with every change of them."""
        generation = 0
        for source in self._distinct_sources:
            source.look()
            generation += source.generation
        return generation

    def close(self) -> None:
        """Fetch no more keys."""
        for source in self._distinct_sources:
            source.close()

    async def verify(self, token: str) -> VerifiedToken:
        """Return whom a token names; raise Unauthenticated, Forbidden, or Unavailable while no keys can be had."""
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
        """Return the wall time in ms after which the token no longer holds."""
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
        """Return the tenant that every alias names, wherever there is one."""
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
        """Return what the token itself brings. Roles and scopes that tenantq does not know bring nothing."""
        queues = claims.get(self.settings.queues_claim, ["*"])
        if not isinstance(queues, list):
            raise Forbidden(_MALFORMED_CLAIM)
        granted = [
            Grant(role=role, queues=tuple(queues))
            for role in dict.fromkeys(_words(claims, self.settings.role_claim))
            if role in ROLES and (role != "platform-admin" or self.settings.platform_admin)
        ]
        scopes = dict.fromkeys(_words(claims, self.settings.scope_claim))
        actions = tuple(action for action in scopes if action in ACTIONS)
        if actions:
            granted.append(Grant(actions=actions, queues=tuple(queues)))
        try:
            return tuple(map(check_grant, granted))
        except Invalid:
            raise Forbidden(_MALFORMED_CLAIM) from None


_JWS: Final = jwt.PyJWS()


def _refuse(reason: str) -> NoReturn:
    log.debug("a token is refused: %s", reason)
    raise Unauthenticated


class _Twice(ValueError):
    """A name is in one JSON object twice: readers may disagree on which of both counts."""


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
    """Return the algorithm and key id that a token's unverified header names."""
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
    """Return the entries of a claim that is text with spaces between, or a list of texts."""
    value = claims.get(name, [])
    words = value.split(" ") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(type(word) is str for word in words):
        raise Forbidden(_MALFORMED_CLAIM)
    return words
