"""The key files that all servers of a cluster need: kept in the store, encrypted with the cluster's secret.

Each server has a copy in its data directory. Without a secret or a common administrator's token, only a fingerprint is in the
store, and the operator copies the files.
"""

import hashlib
import logging
import os
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


def share_keys(
    registry: Registry, home: Path, secret: str | None, admin_token: str | None
) -> tuple[KeyMaker, SigningKey]:
    """Return the keys that all servers of the cluster use, and copy them to ``home``. Blocks.

    Without a secret, an administrator's token that all servers are started with takes its place.
    Raises Invalid if the secret is wrong, or if this server has other keys and no secret.
    """
    with TemporaryDirectory() as made:
        KeyMaker.load_or_make(Path(made))
        SigningKey.load_or_make(Path(made))
        new = {name: (Path(made) / name).read_bytes() for name in SHARED}
    for name in SHARED:
        file = home / name
        own = file.read_bytes() if file.exists() else None
        shared = _exchange(registry, name, own or new[name], secret or admin_token)
        if shared is None and secret is not None:
            raise Invalid(
                "cluster.secret: differs from the secret that the cluster was created with. Use the same one; if there was"
                " none, remove it and set the same TENANTQ_ADMIN_TOKEN."
            )
        shared = shared or own or new[name]
        fingerprint = hashlib.sha256(shared).hexdigest().encode()
        if registry.shared_value(f"{name}:sha256", fingerprint) != fingerprint:
            raise Invalid(
                f"cluster.secret: this server does not have the cluster's {name}. Set the cluster.secret, or else the"
                " TENANTQ_ADMIN_TOKEN, that the cluster was created with, or copy"
                f" {' and '.join(SHARED)} from the data directory of another server to {home}."
            )
        if shared != own:
            if own is not None:
                log.warning("the cluster's %s replaces this server's", name)
            write_durably(file, shared, 0o600)
    return KeyMaker.load_or_make(home), SigningKey.load_or_make(home)


def _exchange(registry: Registry, name: str, own: bytes, secret: str | None) -> bytes | None:
    """Return the cluster's copy of a file; store this server's if there is none. None: the secret does not open it."""
    if secret is None:
        return None
    key = HKDF(SHA256(), _KEY_BYTES, None, b"tenantq shared keys").derive(secret.encode())
    nonce = os.urandom(_NONCE_BYTES)
    stored = registry.shared_value(name, nonce + AESGCM(key).encrypt(nonce, own, name.encode()))
    try:
        return AESGCM(key).decrypt(stored[:_NONCE_BYTES], stored[_NONCE_BYTES:], name.encode())
    except InvalidTag:
        return None
