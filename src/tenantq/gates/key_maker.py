"""Where the secrets of API keys come from: each is derived from the key's id, so that a signature made with it can be checked.

Only the hash of a token is stored. Who wants to check a signature needs the secret itself, and has it from a file of the data directory
that nobody but the server reads: secret = HMAC-SHA256(what is in the file, key id). Whoever steals the database alone still has no key.
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
    """Return what a file of this kind holds; None: it is none."""
    try:
        root = bytes.fromhex(file.read_text(encoding="ascii"))
    except ValueError:
        return None
    return root if len(root) == ROOT_BYTES else None


class KeyMaker:
    """Makes API keys, and their secrets again."""

    def __init__(self, root: bytes) -> None:
        assert len(root) == ROOT_BYTES
        self._root = root

    @classmethod
    def passing(cls) -> KeyMaker:
        """Return one that is not kept: what it made cannot be recomputed by another."""
        return cls(secrets.token_bytes(ROOT_BYTES))

    @classmethod
    def load_or_make(cls, data_dir: Path) -> KeyMaker:
        """Return the directory's own, made on first use and readable by its owner only."""
        file = data_dir / KEY_FILE
        if not file.exists():
            write_durably(file, secrets.token_hex(ROOT_BYTES).encode() + b"\n", 0o600)
        root = read_root(file)
        if root is None:
            raise StoreDamaged(
                f"{file} does not hold {2 * ROOT_BYTES} hexadecimal digits: put back the one that was made with this server, "
                "or remove it; keys made so far then cannot sign requests any more"
            )
        return cls(root)

    def new_key(self, random_bytes: Callable[[int], bytes] = secrets.token_bytes) -> NewKey:
        """Make a key. ``random_bytes`` has to be cryptographically strong."""
        id = key_text(random_bytes(ID_BYTES))
        token = self.token_of(id)
        return NewKey(id, token.rpartition("_")[2], token, token_hash(token))

    def token_of(self, key_id: str) -> str:
        """Return the token that a key of this id has if it was made here."""
        secret = key_text(hmac.digest(self._root, _SECRET_OF + key_id.encode(), "sha256"))
        return f"{PREFIX}_{key_id}_{secret}"

    def key_for(self, purpose: str) -> bytes:
        """Return 32 bytes for something else that only this server is to know."""
        return hmac.digest(self._root, _FOR + purpose.encode(), "sha256")
