"""API keys: ``tq_<key id>_<secret>``, stored as a hash, found again by it. Where they are made: ``key_maker``.

The stored hash is one SHA-256 of the whole token. A slow, salted hash protects passwords because people choose few of them;
here nobody can run through 2^256 secrets, however fast the hash, and a fast one can be taken on every request. The same holds
for a token that an administrator sets, as far as it is random: a short one is only as strong as it is hard to guess.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final, Protocol

import msgspec

from tenantq.domain.access import Principal, StoredKey
from tenantq.errors import Invalid, Unauthenticated

PREFIX: Final = "tq"
ID_BYTES: Final = 10
TOKEN_CHARS_MIN: Final = 16
TOKEN_CHARS_MAX: Final = 512


class NewKey(msgspec.Struct, frozen=True):
    """A key just made. Only ``id`` and ``token_hash`` are to be kept; the rest is shown once."""

    id: str
    secret: str
    token: str
    token_hash: bytes


class ApiKeySource(Protocol):
    """Where keys are found."""

    def key(self, token_hash: bytes) -> StoredKey | None:
        """Return the key of this hash, revoked or not."""

    def key_of_id(self, key_id: str) -> StoredKey | None:
        """Return the key of this id, revoked or not."""


def key_text(raw: bytes) -> str:
    """Return bytes as lower-case letters and digits, so that an id needs no escaping and holds no underscore."""
    return base64.b32encode(raw).decode().rstrip("=").lower()


def token_hash(token: str) -> bytes:
    """Return what is stored in place of a token."""
    return hashlib.sha256(token.encode()).digest()


def check_token(token: object) -> str:
    """Return a token that somebody chose, if it can be sent as one, else raise Invalid, which never shows it."""
    if type(token) is not str or not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX:
        raise Invalid(f"token: it takes {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} characters, best random ones")
    if any(not "!" <= one <= "~" for one in token):
        raise Invalid("token: must be printable ASCII without spaces, as clients send it")
    return token


def find_key(source: ApiKeySource, hash: bytes, now_ms: int) -> StoredKey | None:
    """Return the key of this hash if there is one; raise Unauthenticated if it is revoked or expired."""
    key = source.key(hash)
    if key is None:
        return None
    if is_over(key, now_ms):
        raise Unauthenticated
    return key


def is_over(key: StoredKey, now_ms: int) -> bool:
    """Tell whether a key is revoked or expired."""
    expires_at = key.grant.expires_at
    return key.revoked_at is not None or (expires_at is not None and expires_at <= now_ms)


def key_principal(key: StoredKey) -> Principal:
    """Return who calls with this key."""
    return Principal(key.principal, key.tenant, (key.grant,), key.grant.expires_at)
