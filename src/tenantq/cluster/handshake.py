"""How two shards make sure of each other: each shows that it knows the server's secret, and neither says it.

The inner addresses are on loopback, where anybody on the machine can call, and can answer in place of a shard that is not there.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

CALLER: Final = b"caller"
DOOR: Final = b"door"
_NONCE_BYTES: Final = 32


def nonce() -> bytes:
    """Return what makes the proofs of one connection good for no other."""
    return secrets.token_bytes(_NONCE_BYTES)


def is_nonce(given: object) -> bool:
    """Tell whether a stranger has given what may be a nonce."""
    return type(given) is bytes and len(given) == _NONCE_BYTES


def proof(secret: str, role: bytes, number: int, callers: bytes, doors: bytes) -> bytes:
    """Return what only a shard of this server can say, in this role, on a connection with these nonces of its two ends."""
    return hmac.digest(secret.encode(), b"%s %d " % (role, number) + callers + doors, "sha256")


def is_proof(given: object, expected: bytes) -> bool:
    """Compare without telling by the time it takes how much of it is right."""
    return type(given) is bytes and hmac.compare_digest(given, expected)
