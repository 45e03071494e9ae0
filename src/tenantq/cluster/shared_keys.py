"""The key files that all servers of a cluster need: kept in the store, encrypted with the cluster's secret.

While the secret is replaced, there is a copy for the old one and one for the new one. Each server has a copy in its data directory. Without a secret or a common administrator's token, only a fingerprint is in the
store, and the operator copies the files.
"""

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tenantq.cluster.registry import Registry
from tenantq.errors import Invalid
from tenantq.gates import key_maker
from tenantq.gates.key_maker import KeyMaker
from tenantq.journal import signing
from tenantq.journal.signing import SigningKey
from tenantq.runtime.durable_files import write_durably

log = logging.getLogger("tenantq.cluster")

SHARED: Final = (key_maker.KEY_FILE, signing.KEY_FILE)
"""The files: they make and verify API keys, and sign journals."""

_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_PURPOSE: Final = b"tenantq shared keys"


def share_keys(
    registry: Registry, home: Path, secrets: Sequence[str], admin_token: str | None
) -> tuple[KeyMaker, SigningKey]:
    """Return the keys that all servers of the cluster use, and copy them to ``home``. Blocks.

    The first of the ``secrets`` encrypts the keys in the store; the others are previous ones, which are accepted as well.
    Without any, an administrator's token that all servers are started with takes their place.
    Raises Invalid if no secret is right, or if this server has other keys and no secret. Then the store is unchanged.
    """
    with TemporaryDirectory() as made:
        KeyMaker.load_or_make(Path(made))
        SigningKey.load_or_make(Path(made))
        new = {name: (Path(made) / name).read_bytes() for name in SHARED}
    for name in SHARED:
        file = home / name
        own = file.read_bytes() if file.exists() else None
        copies = KeyCopies(registry, name)
        copies.open(secrets or ([admin_token] if admin_token is not None else []))
        if copies.content is None and copies.undecrypted and secrets:
            raise Invalid(
                "cluster.secret: differs from the secret that the cluster uses. Use the same one. To replace a secret, or"
                " the TENANTQ_ADMIN_TOKEN of a cluster without one, add the old one to cluster.previous_secrets."
            )
        shared = copies.agree(own or new[name])
        if shared is None:
            raise Invalid(
                f"cluster.secret: this server does not have the cluster's {name}. Use the cluster.secret"
                " (or TENANTQ_ADMIN_TOKEN) of the other servers, or copy"
                f" {' and '.join(SHARED)} from the data directory of another server to {home}."
            )
        if secrets:
            copies.remove_undecrypted()
        if shared != own:
            if own is not None:
                log.warning("the cluster's %s replaces this server's", name)
            write_durably(file, shared, 0o600)
    return KeyMaker.load_or_make(home), SigningKey.load_or_make(home)


class KeyCopies:
    """The copies of one key file in the store, each encrypted with another secret. Blocks.

    There are several while a secret is replaced. A copy counts only if it has the fingerprint of the cluster's file.
    """

    def __init__(self, registry: Registry, name: str) -> None:
        """Read the copies."""
        self._registry, self._name = registry, name
        values = registry.shared_values()
        self._fingerprint = values.get(self._fingerprint_name)
        self._values = {
            field: value
            for field, value in values.items()
            if (field == name or field.startswith(f"{name}:")) and field != self._fingerprint_name
        }
        self._secret: str | None = None  # encrypts this server's copy
        self._is_stored = False  # whether that exists
        self.content: bytes | None = None  # of the file, once a secret has decrypted a copy
        self.undecrypted: set[str] = set(self._values)  # copies that no secret decrypts
        self._foreign: set[str] = set()  # copies of other keys, of a server that never belonged to the cluster

    @property
    def _fingerprint_name(self) -> str:
        return f"{self._name}:sha256"

    def open(self, secrets: Sequence[str]) -> None:
        """Decrypt the copies."""
        self._secret = secrets[0] if secrets else None
        for field, value in self._values.items():
            for secret in secrets:
                content = self._decrypt(value, secret)
                if content is None:
                    continue
                self.undecrypted.discard(field)
                if self._fingerprint not in {None, _fingerprint(content)}:
                    self._foreign.add(field)
                    continue
                self.content = content
                self._is_stored = self._is_stored or secret == self._secret

    def agree(self, own: bytes) -> bytes | None:
        """Return the cluster's file: the one in the store, or else ``own``. None if the cluster has another one.

        A copy for this server's secret is added, unless that has decrypted none of those that exist.
        """
        content = self.content or own
        if self._fingerprint not in {None, _fingerprint(content)}:
            return None
        for field in self._foreign:
            self._registry.remove_shared(field)
        if self._secret is not None and not self._is_stored and not (self.content is None and self.undecrypted):
            field = f"{self._name}:{_key(self._secret, b'name of a copy').hex()[:16]}"
            stored = self._registry.shared_value(field, self._encrypt(content, self._secret))
            content = self._decrypt(stored, self._secret) or content  # another server may have been first
        fingerprint = _fingerprint(content)
        return content if self._registry.shared_value(self._fingerprint_name, fingerprint) == fingerprint else None

    def remove_undecrypted(self) -> None:
        """Delete the copies that no secret of this server decrypts: their secrets were replaced."""
        for field in self.undecrypted:
            self._registry.remove_shared(field)

    def _encrypt(self, content: bytes, secret: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(_key(secret, _PURPOSE)).encrypt(nonce, content, self._name.encode())

    def _decrypt(self, stored: bytes, secret: str) -> bytes | None:
        nonce, ciphertext = stored[:_NONCE_BYTES], stored[_NONCE_BYTES:]
        try:
            return AESGCM(_key(secret, _PURPOSE)).decrypt(nonce, ciphertext, self._name.encode())
        except InvalidTag:
            return None


def _key(secret: str, purpose: bytes) -> bytes:
    return HKDF(SHA256(), _KEY_BYTES, None, purpose).derive(secret.encode())


def _fingerprint(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
