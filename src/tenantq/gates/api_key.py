"""API keys: ``tq_<key id>_<secret>``, stored and found by their hash. ``key_maker`` creates them.

The stored hash is one SHA-256 of the whole token. A slow, salted hash is needed for passwords, which can be guessed. Secrets of
256 random bits cannot, and a fast hash can be computed for every request. A token chosen by an administrator must be random, too.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final, Protocol

import msgspec

from tenantq.domain.access import Principal, StoredKey
from tenantq.domain.formatting import show_time
from tenantq.errors import Invalid, KeySuspended, Unauthenticated

PREFIX: Final = "tq"
ID_BYTES: Final = 10
TOKEN_CHARS_MIN: Final = 16
TOKEN_CHARS_MAX: Final = 512


class NewKey(msgspec.Struct, frozen=True):
    """A new key. Only ``id`` and ``token_hash`` are stored; the rest is shown once."""

    id: str
    secret: str
    token: str
    token_hash: bytes


class ApiKeySource(Protocol):
    """The store of keys, as authentication uses it."""

    def key(self, token_hash: bytes) -> StoredKey | None:
        """Return the key of this hash, revoked or not."""


def key_text(raw: bytes) -> str:
    """Return bytes as lower-case letters and digits: an ID without escapes and underscores."""
    return base64.b32encode(raw).decode().rstrip("=").lower()


def token_hash(token: str) -> bytes:
    """Return the hash that is stored instead of a token."""
    return hashlib.sha256(token.encode()).digest()


def check_token(token: object) -> str:
    """Return a token chosen by a user. Raises Invalid, without showing the token, if clients could not send it."""
    if type(token) is not str or not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX:
        raise Invalid(f"token: must have {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} characters, preferably random")
    if any(not "!" <= one <= "~" for one in token):
        raise Invalid("token: must be printable ASCII without spaces, as clients send it")
    return token


def find_key(source: ApiKeySource, hash: bytes, now_ms: int) -> StoredKey | None:
    """Return the key of this hash, or None. Raises what ``check_key`` raises."""
    key = source.key(hash)
    if key is not None:
        check_key(key, now_ms)
    return key


def check_key(key: StoredKey, now_ms: int) -> None:
    """Raise Unauthenticated if a key is revoked or expired, KeySuspended while it is suspended."""
    if key.is_over(now_ms):
        raise Unauthenticated
    if key.is_suspended(now_ms):
        raise KeySuspended(
            f"API key {key.id} is suspended until {show_time(key.suspended_until or 0)} because of an alert. "
            "A platform administrator can release it."
        )


def key_principal(key: StoredKey) -> Principal:
    return Principal(key.principal, key.tenant, (key.grant,), key.grant.expires_at)
