"""Ed25519 signatures of journal documents. Anyone with the public key can verify them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from tenantq.errors import Invalid, StoreDamaged, TenantqError
from tenantq.runtime.durable_files import write_durably

log = logging.getLogger("tenantq.journal")

KEY_FILE: Final = "audit_key"
PUBLIC_FILE: Final = "audit_key.pub"


class PublicKey:
    """Verifies signatures."""

    def __init__(self, key: Ed25519PublicKey) -> None:
        self._key = key
        self.id = hashlib.sha256(key.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]

    @classmethod
    def load(cls, file: Path) -> PublicKey:
        """Read a PEM file. Raises Invalid."""
        try:
            key = load_pem_public_key(file.read_bytes())
        except OSError as error:
            raise Invalid(f"public key {file}: {error.strerror}") from error
        except ValueError as error:
            raise Invalid(f"public key {file}: not a PEM file of a public key") from error
        if not isinstance(key, Ed25519PublicKey):
            raise Invalid(f"public key {file}: not an Ed25519 key")
        return cls(key)

    def verifies(self, signature: str, text: bytes) -> bool:
        """Return whether ``signature`` (hex) is this key's signature of ``text``."""
        try:
            self._key.verify(bytes.fromhex(signature), text)
        except (InvalidSignature, ValueError):
            return False
        return True

    def pem(self) -> bytes:
        return self._key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def retired_name(key_id: str) -> str:
    """Return the name of the file that keeps the public part of a retired key."""
    return f"audit_key-{key_id}.pub"


def retired_ids(data_dir: Path) -> list[str]:
    """Return the ids of all retired keys of a data directory."""
    before, behind = retired_name("*").split("*")
    return sorted(file.name[len(before) : -len(behind)] for file in data_dir.glob(retired_name("*")))


class PublicKeys:
    """Verifies signatures of a server's current key and of keys it had before a restore."""

    def __init__(self, keys: Sequence[PublicKey]) -> None:
        self.keys = tuple(keys)

    @classmethod
    def of(cls, data_dir: Path) -> PublicKeys:
        files = [data_dir / PUBLIC_FILE, *sorted(data_dir.glob(retired_name("*")))]
        return cls([PublicKey.load(file) for file in files if file.exists()])

    def verifies(self, signature: str, text: bytes) -> bool:
        """Return whether ``signature`` (hex) is a signature of ``text`` by any of these keys."""
        return any(key.verifies(signature, text) for key in self.keys)


def _retire(public: Path) -> None:
    try:
        before = PublicKey.load(public)
    except Invalid as error:
        log.warning("%s; replacing it", error.message)
        return
    log.warning(
        "the audit key was replaced; signatures of key %s are verified with %s", before.id, retired_name(before.id)
    )
    write_durably(public.with_name(retired_name(before.id)), before.pem(), 0o644)


class SigningKey:
    """Signs. Stored in the data directory, readable by its owner only."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PublicKey(key.public_key())

    @classmethod
    def load_or_make(cls, data_dir: Path) -> SigningKey:
        """Return the directory's key, created on first use, and write the public key next to it.

        If the private key was replaced or lost, the old public key is kept, because it verifies older signatures.
        """
        file, public = data_dir / KEY_FILE, data_dir / PUBLIC_FILE
        if not file.exists():
            key = Ed25519PrivateKey.generate()
            pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            write_durably(file, pem, 0o600)
        found = cls.parse(file.read_bytes(), file)
        if not public.exists() or public.read_bytes() != found.public.pem():
            if public.exists():
                _retire(public)
            write_durably(public, found.public.pem(), 0o644)
        return found

    @classmethod
    def parse(cls, pem: bytes, file: Path) -> SigningKey:
        """Return the key in ``pem``, the content of ``file``. Raises StoreDamaged."""
        try:
            key = load_pem_private_key(pem, None)
        except (ValueError, TypeError) as error:
            raise StoreDamaged(f"{file}: not a private key. Restore the key that this server created.") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise StoreDamaged(f"{file}: not an Ed25519 key. Restore the key that this server created.")
        return cls(key)

    def sign(self, text: bytes) -> str:
        """Return the signature of ``text``, as hex."""
        return self._key.sign(text).hex()


class SignedDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON document with a signature over all its other fields. Other fields are refused: no signature covers them."""

    signature_prefix: ClassVar[bytes] = b""  # separates kinds of documents that are signed with one key

    key_id: str = ""
    signature: str = ""

    @classmethod
    def parse(cls, data: bytes, refusal: str, failure: type[TenantqError] = Invalid) -> Self:
        """Return the document in ``data``. Raises ``failure`` with ``refusal`` and the reason."""
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise failure(f"{refusal}: {error}") from error

    def signed_text(self) -> bytes:
        """Return the bytes that are signed: everything but the signature."""
        unsigned = msgspec.structs.replace(self, signature="")
        return self.signature_prefix + msgspec.json.encode(unsigned, order="sorted")

    def signed(self, key: SigningKey) -> Self:
        """Return the document signed with ``key``."""
        named = msgspec.structs.replace(self, key_id=key.public.id)
        return msgspec.structs.replace(named, signature=key.sign(named.signed_text()))

    def is_signed_by(self, key: PublicKey | PublicKeys) -> bool:
        return bool(self.signature) and key.verifies(self.signature, self.signed_text())
