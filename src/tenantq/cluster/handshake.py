"""The handshake of two shards: each proves that it knows the server's secret without sending it.

The internal addresses are on loopback, where every process of the machine can connect, or listen in place of a stopped shard.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

CALLER: Final = b"caller"
SERVER: Final = b"server"
_NONCE_BYTES: Final = 32


def nonce() -> bytes:
    """Return random bytes that bind proofs to one connection."""
    return secrets.token_bytes(_NONCE_BYTES)


def is_nonce(given: object) -> bool:
    """Return whether a received value can be a nonce."""
    return type(given) is bytes and len(given) == _NONCE_BYTES


def proof(secret: str, role: bytes, number: int, callers: bytes, servers: bytes) -> bytes:
    """Return the proof that only a shard of this server can give, in this role, on a connection with these nonces."""
    return hmac.digest(secret.encode(), b"%s %d " % (role, number) + callers + servers, "sha256")


def is_proof(given: object, expected: bytes) -> bool:
    """Compare in constant time."""
    return type(given) is bytes and hmac.compare_digest(given, expected)
