"""The handshake of two shards or servers: each proves that it knows their secret without sending it.

On loopback every process of the machine can connect, or listen in place of a stopped shard. Between machines the proofs also
cover the certificate of the TLS connection, so that nobody in between can relay them.
"""

import hmac
import secrets
from typing import Final

PeerName = int | str
"""What the calling end is called: a shard's number, or a server's id."""

CALLER: Final = b"caller"
SERVER: Final = b"server"
_NONCE_BYTES: Final = 32


def nonce() -> bytes:
    """Return random bytes that bind proofs to one connection."""
    return secrets.token_bytes(_NONCE_BYTES)


def is_nonce(given: object) -> bool:
    """Return whether a received value can be a nonce."""
    return type(given) is bytes and len(given) == _NONCE_BYTES


def proof(secret: str, role: bytes, name: PeerName, callers: bytes, servers: bytes, binding: bytes = b"") -> bytes:
    """Return the proof that only who knows the secret can give, in this role, on a connection with these nonces.

    ``binding`` is the hash of the server's certificate, if the connection has one.
    """
    return hmac.digest(secret.encode(), b"%s %s " % (role, str(name).encode()) + callers + servers + binding, "sha256")


def is_proof(given: object, expected: bytes) -> bool:
    """Compare in constant time."""
    return type(given) is bytes and hmac.compare_digest(given, expected)
