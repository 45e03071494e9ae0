"""Test credentials: keys and grants in memory, signed tokens, and key sets."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tenantq.domain.access import Grant, StoredKey
from tenantq.gates.api_key import NewKey, token_hash
from tenantq.gates.json_web_token import JwtSettings, JwtVerifier
from tenantq.gates.key_maker import KeyMaker

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
SECRET = "correct-horse-battery-staple-is-not-random"  # noqa: S105  # a test's own


class MemoryBook:
    """Keys, grants and revocations, with the version that the gates check."""

    def __init__(self) -> None:
        self.version = 0
        self.maker = KeyMaker(bytes(32))
        self.keys: dict[bytes, StoredKey] = {}
        self.stored: dict[tuple[str, str], tuple[Grant, ...]] = {}
        self.revoked: dict[tuple[str | None, str], int] = {}
        self.asked = 0

    def key(self, token_hash: bytes) -> StoredKey | None:
        return self.keys.get(token_hash)

    def grants(self, tenant: str, principal: str) -> tuple[Grant, ...]:
        self.asked += 1
        return self.stored.get((tenant, principal), ())

    def tenants_of(self, principal: str) -> list[str]:
        return [tenant for tenant, holder in self.stored if holder == principal]

    def token_revoked(self, tenant: str | None, token_id: str | None, principal: str, now_ms: int) -> bool:
        names = [principal] if token_id is None else [principal, token_id]
        return any(self.revoked.get((tenant, name), 0) > now_ms for name in names)

    def put_key(self, tenant: str | None, grant: Grant, token: str | None = None) -> NewKey:
        made = self.maker.new_key()
        if token is not None:
            made = NewKey(made.id, token, token, token_hash(token))
        self._store(made.token_hash, made.id, tenant, grant, None)
        return made

    def revoke_key(self, key: NewKey, at: int) -> None:
        stored = self.keys[key.token_hash]
        self._store(key.token_hash, key.id, stored.tenant, stored.grant, at)

    def _store(self, hash: bytes, id: str, tenant: str | None, grant: Grant, revoked_at: int | None) -> None:
        self.keys[hash] = StoredKey(
            id=id,
            tenant=tenant,
            name="a key",
            grant=grant,
            token_hash=hash,
            created_at=0,
            created_by="system",
            revoked_at=revoked_at,
        )
        self.version += 1

    def put_grant(self, tenant: str, principal: str, *grants: Grant) -> None:
        self.stored[tenant, principal] = grants
        self.version += 1

    def revoke(self, tenant: str | None, name: str, until: int) -> None:
        self.revoked[tenant, name] = until
        self.version += 1


@lru_cache
def private_key(kind: str, number: int = 0) -> PrivateKey:
    """Return a private key of a kind for this test run; another number gives another key."""
    if kind == "RSA":
        return rsa.generate_private_key(65_537, 2_048)
    if kind == "Ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    curve = {"P-256": ec.SECP256R1, "P-384": ec.SECP384R1}[kind]
    return ec.generate_private_key(curve())


def public_jwk(key: PrivateKey, **members: Any) -> dict[str, Any]:
    """Return a key's entry in a key set."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        return {**RSAAlgorithm.to_jwk(public, as_dict=True), **members}
    if isinstance(public, ed25519.Ed25519PublicKey):
        return {**OKPAlgorithm.to_jwk(public, as_dict=True), **members}
    return {**ECAlgorithm.to_jwk(public, as_dict=True), **members}


def key_set(*entries: Any) -> str:
    """Return a JWKS with these entries."""
    return json.dumps({"keys": list(entries)})


def replace_file(path: Path, text: str) -> None:
    """Replace a file as operators should: write a new one, then rename it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def claims(clock: ManualClock, **changes: Any) -> dict[str, Any]:
    """Return the claims of a valid token with changes; ``...`` removes a claim."""
    now = clock.wall_ms() // 1_000
    whole = {"sub": "worker-7", "exp": now + 600, "iat": now, "tenant": "acme", "role": "producer", **changes}
    return {name: value for name, value in whole.items() if value is not ...}


def signed(body: dict[str, Any], key: Any = None, algorithm: str = "EdDSA", **header: Any) -> str:
    """Return a token, by default signed with the run's first Ed25519 key."""
    return jwt.encode(body, private_key("Ed25519") if key is None else key, algorithm, headers=header)


def signed_raw(payload: bytes, key: Any = None, algorithm: str = "EdDSA", **header: Any) -> str:
    """Return a token whose claims are exactly these bytes."""
    return jwt.PyJWS().encode(payload, private_key("Ed25519") if key is None else key, algorithm, headers=header)


def base64url(raw: bytes) -> str:
    """Return bytes as base64url without padding."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def unchecked_token(header: Any, body: Any, secret: bytes | None = None) -> str:
    """Return a token built without a library's checks: HMAC-SHA256 with ``secret``, or no signature."""
    head = ".".join(base64url(json.dumps(part).encode()) for part in (header, body))
    signature = b"" if secret is None else hmac.new(secret, head.encode(), hashlib.sha256).digest()
    return f"{head}.{base64url(signature)}"


def verifier(clock: ManualClock, directory: Path, **settings: Any) -> JwtVerifier:
    """Return a verifier that reads one key of each kind from a file."""
    path = directory / "keys.json"
    if not path.exists():
        kinds = ("RSA", "P-256", "P-384", "Ed25519")
        path.write_text(key_set(*(public_jwk(private_key(kind), kid=kind) for kind in kinds)))
    return JwtVerifier(JwtSettings(jwks_file=str(path), **settings), clock)
