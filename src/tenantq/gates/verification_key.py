"""Keys that verify tokens, from a key set (JWKS) or a file of shared secrets.

Every key is bound to the algorithms of its own kind when it is read. Public keys come from a key set only, shared secrets from
a secret file only, so that no public key is ever taken for a shared secret, whatever a token's header says.
"""

import hashlib
import json
import logging
from collections.abc import Callable
from typing import Any, Final

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from tenantq.errors import Invalid

log = logging.getLogger("tenantq")

JwtPublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | ed448.Ed448PublicKey

KEYS_MAX: Final = 64
SECRET_BYTES_MIN: Final = 32
RSA_BITS: Final = (2_048, 8_192)

RSA_ALGORITHMS: Final = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
EC_ALGORITHMS: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
PUBLIC_ALGORITHMS: Final = RSA_ALGORITHMS | frozenset(EC_ALGORITHMS.values()) | {"EdDSA"}
SHARED_ALGORITHM: Final = "HS256"


class VerificationKey(msgspec.Struct, frozen=True):
    """One key, and the only algorithms it may be used with."""

    id: str | None
    algorithms: frozenset[str]
    fingerprint: bytes
    key: Any  # PublicKey, or the bytes of a shared secret

    @property
    def identity(self) -> tuple[str | None, frozenset[str], bytes]:
        return self.id, self.algorithms, self.fingerprint


class Unusable(Exception):
    """Why an entry of a key set is ignored. The text contains nothing of the key."""


def parse_key_set(document: bytes) -> tuple[VerificationKey, ...]:
    """Return the keys of a JWKS. Unusable entries are ignored with a warning. Raises Invalid if it is not a JWKS."""
    try:
        entries = json.loads(document.decode())["keys"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Invalid('must be an object with a list "keys"') from error
    if not isinstance(entries, list):
        raise Invalid('"keys" must be a list')
    if len(entries) > KEYS_MAX:
        raise Invalid(f"{len(entries)} keys, allowed are up to {KEYS_MAX}")
    keys = []
    for place, entry in enumerate(entries):
        try:
            keys.append(_parse_key(entry))
        except Unusable as reason:
            log.warning("key set: ignoring entry %d: %s", place, reason)
    return tuple(keys)


def _parse_key(entry: Any) -> VerificationKey:
    if not isinstance(entry, dict):
        raise Unusable("not an object")
    if entry.get("kty") == "oct":
        raise Unusable("a shared secret is not allowed in a key set")
    if "d" in entry:
        raise Unusable("it contains a private key, which is now exposed. Replace the key.")
    if entry.get("use", "sig") != "sig" or "verify" not in _texts(entry.get("key_ops", ["verify"])):
        raise Unusable("it is not for verifying signatures")
    id = entry.get("kid")
    if id is not None and type(id) is not str:
        raise Unusable("its kid is not text")
    key = _public_key(entry)
    algorithms = _algorithms_of(key)
    if "alg" in entry:
        algorithms &= set(_texts([entry["alg"]]))
        if not algorithms:
            raise Unusable("its alg does not fit the key or is not known")
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return VerificationKey(id, algorithms, hashlib.sha256(der).digest(), key)


def _texts(value: Any) -> list[str]:
    return [item for item in value if type(item) is str] if isinstance(value, list) else []


_KINDS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "RSA": RSAAlgorithm.from_jwk,
    "EC": ECAlgorithm.from_jwk,
    "OKP": OKPAlgorithm.from_jwk,
}


def _public_key(entry: dict[str, Any]) -> JwtPublicKey:
    kind = entry.get("kty")
    read = _KINDS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise Unusable("its kty is not RSA, EC or OKP")
    try:
        key = read(entry)
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise Unusable("its parameters are not a valid key") from error
    if not isinstance(key, JwtPublicKey):
        raise Unusable("it is not a public key")
    return key


def _algorithms_of(key: JwtPublicKey) -> frozenset[str]:
    if isinstance(key, rsa.RSAPublicKey):
        if not RSA_BITS[0] <= key.key_size <= RSA_BITS[1]:
            raise Unusable(f"an RSA key of {key.key_size} bits; allowed are {RSA_BITS[0]} to {RSA_BITS[1]}")
        return RSA_ALGORITHMS
    if isinstance(key, ec.EllipticCurvePublicKey):
        if key.curve.name not in EC_ALGORITHMS:
            raise Unusable("its curve is not P-256, P-384 or P-521")
        return frozenset({EC_ALGORITHMS[key.curve.name]})
    return frozenset({"EdDSA"})


def parse_secrets(document: bytes) -> tuple[VerificationKey, ...]:
    """Return the shared secrets of a file, one per line. All of them are valid. Raises Invalid."""
    if b"-----BEGIN" in document or document.lstrip().startswith(b"{"):
        raise Invalid("this is a key or certificate, not a shared secret; put public keys into a key set")
    secrets = [line for line in document.splitlines() if line]
    if not 1 <= len(secrets) <= KEYS_MAX:
        raise Invalid(f"{len(secrets)} secrets, one a line, allowed are 1 to {KEYS_MAX}")
    for secret in secrets:
        if len(secret) < SECRET_BYTES_MIN:
            raise Invalid(f"a secret, one a line, takes at least {SECRET_BYTES_MIN} bytes of text")
        try:
            if not secret.decode().isprintable():
                raise Invalid("a secret is text without control characters, for example in base64")
            jwt.get_algorithm_by_name(SHARED_ALGORITHM).prepare_key(secret)  # refuses what is a public key
        except (UnicodeDecodeError, jwt.PyJWTError) as error:
            raise Invalid("a secret is text, for example random bytes in base64, and not a public key") from error
    algorithms = frozenset({SHARED_ALGORITHM})
    return tuple(VerificationKey(None, algorithms, hashlib.sha256(secret).digest(), secret) for secret in secrets)
