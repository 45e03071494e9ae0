"""Creates the secrets of API keys: each is derived from the key's ID, so that signatures made with it can be verified.

The store has only the hash of a token. Verifying a signature needs the secret itself, which is computed from a file in the data
directory: secret = HMAC-SHA256(content of the file, key ID). A stolen database alone reveals no key.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tenantq.errors import StoreDamaged
from tenantq.gates.api_key import ID_BYTES, PREFIX, NewKey, key_text, token_hash
from tenantq.runtime.durable_files import write_durably

KEY_FILE: Final = "key_maker"
ROOT_BYTES: Final = 32
_SECRET_OF: Final = b"secret of API key\0"
_FOR: Final = b"key for\0"


def read_root(file: Path) -> bytes | None:
    """Return the content of such a file, or None if it is invalid."""
    try:
        root = bytes.fromhex(file.read_text(encoding="ascii"))
    except ValueError:
        return None
    return root if len(root) == ROOT_BYTES else None


class KeyMaker:
    """Creates API keys, and recomputes their secrets."""

    def __init__(self, root: bytes) -> None:
        assert len(root) == ROOT_BYTES
        self._root = root

    @classmethod
    def temporary(cls) -> KeyMaker:
        """Return a temporary one. No other can recompute its secrets."""
        return cls(secrets.token_bytes(ROOT_BYTES))

    @classmethod
    def load_or_make(cls, data_dir: Path) -> KeyMaker:
        """Return the one of a data directory. Its file is created on first use, readable by its owner only."""
        file = data_dir / KEY_FILE
        if not file.exists():
            write_durably(file, secrets.token_hex(ROOT_BYTES).encode() + b"\n", 0o600)
        root = read_root(file)
        if root is None:
            raise StoreDamaged(
                f"{file} must contain {2 * ROOT_BYTES} hexadecimal digits. Restore the server's original file, or remove it. "
                "Without it, existing keys cannot sign requests."
            )
        return cls(root)

    def new_key(self, random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> NewKey:
        """Create a key. ``random_bytes`` must be cryptographically strong."""
        id = key_text(random_bytes(ID_BYTES))
        token = self.token_of(id)
        return NewKey(id, token.rpartition("_")[2], token, token_hash(token))

    def token_of(self, key_id: str) -> str:
        """Return the token of a key with this ID that was created here."""
        secret = key_text(hmac.digest(self._root, _SECRET_OF + key_id.encode(), "sha256"))
        return f"{PREFIX}_{key_id}_{secret}"

    def key_for(self, purpose: str) -> bytes:
        """Return a secret of 32 bytes for another purpose."""
        return hmac.digest(self._root, _FOR + purpose.encode(), "sha256")
