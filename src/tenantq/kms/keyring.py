"""The keyring of the local provider: one JSON file of named keys with versions, protected by a passphrase or a master key.

    {"format": "tenantq-keyring", "version": 1,
     "protection": {"kind": "passphrase", "salt": "…", "n": 131072, "r": 8, "p": 1}      or {"kind": "master_key"}
     "keys": {"main": {"enabled": true, "versions": {"1": {"wrapped": "…", "created_at": 1700000000000}}}},
     "mac": "…"}

The passphrase (through scrypt) or the master key gives the root key. HKDF derives from it one key that wraps (AES-256-GCM) and one
that authenticates the whole document (HMAC-SHA-256). The highest version wraps; all versions unwrap.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tenantq.errors import Conflict, DecryptionFailed, Invalid, KeyDisabled, NotFound
from tenantq.kms.secret_file import read_secret_file
from tenantq.runtime.durable_files import write_durably

FORMAT: Final = "tenantq-keyring"
VERSION: Final = 1
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
SALT_BYTES: Final = 16
SCRYPT_N: Final = 1 << 17
SCRYPT_R: Final = 8
SCRYPT_MEMORY_MAX: Final = 1 << 30
PASSPHRASE_BYTES_MIN: Final = 12
KEYS_MAX: Final = 10_000
VERSIONS_MAX: Final = 1_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_HEAD = struct.Struct(">BI")  # format of wrapped bytes, version of the key
_WRAPPED_FORMAT: Final = 1
_TAG_BYTES: Final = 16


def check_key_name(name: object) -> str:
    """Return ``name``. Raises Invalid if it cannot name a key."""
    if type(name) is not str or _NAME.fullmatch(name) is None:
        raise Invalid("key: must be 1 to 63 letters, digits, '_', '.' or '-', starting with a letter or digit")
    return name


class Unlock:
    """The secret that unlocks a keyring: a passphrase, or a master key of 32 bytes. No text shows it."""

    def __init__(self, kind: Literal["passphrase", "master_key"], secret: bytes) -> None:
        if kind == "master_key" and len(secret) != KEY_BYTES:
            raise Invalid(f"master key: must be {KEY_BYTES} random bytes or {2 * KEY_BYTES} hexadecimal digits")
        if kind == "passphrase" and len(secret) < PASSPHRASE_BYTES_MIN:
            raise Invalid(f"passphrase: must have at least {PASSPHRASE_BYTES_MIN} characters. Use random ones.")
        self.kind: Final = kind
        self._secret = secret

    def root(self, protection: Protection) -> bytes:
        """Return the root key of a document with this protection."""
        if protection.kind != self.kind:
            raise Invalid(f"the keyring is protected by a {_spoken(protection.kind)}, not by a {_spoken(self.kind)}")
        if self.kind == "master_key":
            return self._secret
        n, r, p = protection.n, protection.r, protection.p
        return hashlib.scrypt(
            self._secret, salt=protection.salt, n=n, r=r, p=p, maxmem=SCRYPT_MEMORY_MAX + (1 << 20), dklen=KEY_BYTES
        )


def _spoken(kind: str) -> str:
    return kind.replace("_", " ")


class Protection(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the root key is derived."""

    kind: Literal["passphrase", "master_key"]
    salt: bytes = b""
    n: int = 0
    r: int = 0
    p: int = 0


class KeyVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One version of a key."""

    wrapped: bytes
    created_at: int


class NamedKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key: the highest version wraps, all of them unwrap."""

    enabled: bool
    versions: dict[int, KeyVersion]

    @property
    def current(self) -> int:
        """The version that wraps."""
        return max(self.versions)


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    format: str
    version: int
    protection: Protection
    keys: dict[str, NamedKey]
    mac: bytes = b""


def _derived(root: bytes, purpose: bytes) -> bytes:
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=b"tenantq keyring v1 " + purpose).derive(root)


def _version_aad(name: str, version: int) -> bytes:
    return b"tenantq keyring key\0" + version.to_bytes(4) + name.encode()


class Keyring:
    """The keys of a keyring as read from its file. No text shows them."""

    def __init__(self, document: Document, root: bytes) -> None:
        self.document: Final = document
        self._root = root
        self._cipher_of_root = AESGCM(_derived(root, b"wrap"))
        self._ciphers: dict[tuple[str, int], AESGCM] = {}

    def known(self, name: str) -> NamedKey:
        """Return a key, enabled or not. Raises NotFound."""
        key = self.document.keys.get(check_key_name(name))
        if key is None:
            raise NotFound(f"key: no key {name!r} in the keyring")
        return key

    def wrap(self, name: str, plaintext: bytes, aad: bytes, random_bytes: Callable[[int], bytes]) -> bytes:
        """Return ``plaintext`` wrapped by the newest version. Raises KeyDisabled."""
        version = self._key(name).current
        nonce = random_bytes(NONCE_BYTES)
        head = _HEAD.pack(_WRAPPED_FORMAT, version)
        return head + nonce + self._cipher(name, version).encrypt(nonce, plaintext, head + aad)

    def unwrap(self, name: str, wrapped: bytes, aad: bytes) -> bytes:
        """Return the plaintext. Raises KeyDisabled or DecryptionFailed."""
        key = self._key(name)
        if len(wrapped) < _HEAD.size + NONCE_BYTES + _TAG_BYTES or wrapped[0] != _WRAPPED_FORMAT:
            raise DecryptionFailed("local: the wrapped bytes were not written by this provider.")
        head, rest = wrapped[: _HEAD.size], wrapped[_HEAD.size :]
        _, version = _HEAD.unpack(head)
        if version not in key.versions:
            raise KeyDisabled(
                f"local: version {version} of the key is not in the keyring. Restore the keyring from its backup."
            )
        try:
            return self._cipher(name, version).decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], head + aad)
        except InvalidTag:
            raise DecryptionFailed("local: the wrapped bytes do not belong to this key and context.") from None

    def _key(self, name: str) -> NamedKey:
        key = self.document.keys.get(name)
        if key is None:
            raise KeyDisabled("local: the keyring has no key of this name. Add the key, or correct the name.")
        if not key.enabled:
            raise KeyDisabled("local: the key is disabled in the keyring. Enable it.")
        return key

    def _cipher(self, name: str, version: int) -> AESGCM:
        cipher = self._ciphers.get((name, version))
        if cipher is None:
            cipher = self._ciphers[name, version] = AESGCM(self._plain(name, version))
        return cipher

    def _plain(self, name: str, version: int) -> bytes:
        wrapped = self.document.keys[name].versions[version].wrapped
        return self._cipher_of_root.decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], _version_aad(name, version))

    def version(self, name: str, version: int, plain: bytes, created_at: int, nonce: bytes) -> KeyVersion:
        """Return a new version of a key, wrapped for this keyring."""
        return KeyVersion(nonce + self._cipher_of_root.encrypt(nonce, plain, _version_aad(name, version)), created_at)

    def with_key(self, name: str, key: NamedKey | None) -> Document:
        """Return the document with a key added, replaced or (None) removed."""
        keys = {**self.document.keys, name: key} if key is not None else {**self.document.keys}
        if key is None:
            keys.pop(name)
        return self.authenticated(msgspec.structs.replace(self.document, keys=keys))

    def authenticated(self, document: Document) -> Document:
        """Return ``document`` with its MAC."""
        return msgspec.structs.replace(document, mac=_mac(document, self._root))


def _mac(document: Document, root: bytes) -> bytes:
    plain = msgspec.json.decode(msgspec.json.encode(msgspec.structs.replace(document, mac=b"")))
    text = msgspec.json.encode(plain, order="deterministic")
    return hmac.digest(_derived(root, b"mac"), text, "sha256")


def parse_keyring(
    content: bytes, unlock: Unlock, root: tuple[Protection, bytes] | None = None
) -> tuple[Keyring, bytes]:
    """Return the keyring and its root key. ``root`` is a cached one, used if the protection is the same. Raises Invalid."""
    try:
        document = msgspec.json.decode(content, type=Document)
    except msgspec.MsgspecError as error:
        raise Invalid(f"not a keyring: {error}") from None
    if document.format != FORMAT or document.version != VERSION:
        raise Invalid(f"not a keyring of version {VERSION}")
    protection = document.protection
    if protection.kind == "passphrase":
        n, r, p = protection.n, protection.r, protection.p
        sound = n > 1 and n & (n - 1) == 0 and r > 0 and 0 < p <= 16 and 128 * n * r <= SCRYPT_MEMORY_MAX
        if not sound or len(protection.salt) < SALT_BYTES:
            raise Invalid("the scrypt parameters are out of range")
    derived = root[1] if root is not None and root[0] == protection else unlock.root(protection)
    if not hmac.compare_digest(_mac(document, derived), document.mac):
        raise Invalid(f"wrong {_spoken(unlock.kind)}, or the file was changed")
    return Keyring(document, derived), derived


class KeyringFile:
    """The file of a keyring. Every change is written atomically, under a lock."""

    def __init__(self, path: Path, unlock: Unlock, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self.path: Final = path
        self._unlock = unlock
        self._random_bytes = random_bytes

    def create(self, *, scrypt_n: int = SCRYPT_N) -> None:
        """Create an empty keyring. Raises Conflict if the file exists."""
        protection = self._new_protection(self._unlock, scrypt_n)
        root = self._unlock.root(protection)
        document = Document(FORMAT, VERSION, protection, {})
        self._write(Keyring(document, root).authenticated(document), new=True)

    def read(self) -> Keyring:
        """Return the current keyring. Raises Invalid."""
        try:
            content, _ = read_secret_file(self.path)
            return parse_keyring(content, self._unlock)[0]
        except OSError as error:
            raise Invalid(f"{self.path}: cannot read the keyring: {error.strerror}") from None
        except Invalid as error:
            raise Invalid(f"{self.path}: {error.message}") from None

    def add_key(self, name: str, now_ms: int) -> None:
        """Add a key with its first version. Raises Conflict if the name exists."""
        check_key_name(name)
        with self._changing() as keyring:
            if name in keyring.document.keys:
                raise Conflict(f"key: {name!r} already exists. Rotate it to add a version.")
            if len(keyring.document.keys) >= KEYS_MAX:
                raise Invalid(f"key: the keyring is full ({KEYS_MAX} keys)")
            self._write(self._another_version(keyring, name, 1, now_ms))

    def rotate_key(self, name: str, now_ms: int) -> int:
        """Add a version to a key, which wraps from now on, and return its number. Older ones still unwrap."""
        with self._changing() as keyring:
            key = keyring.known(name)
            if len(key.versions) >= VERSIONS_MAX:
                raise Invalid(f"key: too many versions (limit {VERSIONS_MAX}). Add another key and rewrap to it.")
            version = key.current + 1
            self._write(self._another_version(keyring, name, version, now_ms))
        return version

    def set_enabled(self, name: str, *, enabled: bool) -> None:
        """Enable or disable a key."""
        with self._changing() as keyring:
            key = msgspec.structs.replace(keyring.known(name), enabled=enabled)
            self._write(keyring.with_key(name, key))

    def remove_key(self, name: str) -> None:
        """Destroy a key in this file. Data keys that only it wrapped are lost, unless a copy of the file exists."""
        with self._changing() as keyring:
            keyring.known(name)
            self._write(keyring.with_key(name, None))

    def protect_with(self, unlock: Unlock, *, scrypt_n: int = SCRYPT_N) -> None:
        """Change the secret that unlocks the file. The keys stay the same."""
        with self._changing() as keyring:
            protection = self._new_protection(unlock, scrypt_n)
            root = unlock.root(protection)
            moved = Keyring(Document(FORMAT, VERSION, protection, {}), root)
            keys = {name: self._moved(name, key, keyring, moved) for name, key in keyring.document.keys.items()}
            self._write(moved.authenticated(msgspec.structs.replace(moved.document, keys=keys)))
            self._unlock = unlock

    def _new_protection(self, unlock: Unlock, scrypt_n: int) -> Protection:
        if unlock.kind == "master_key":
            return Protection("master_key")
        return Protection("passphrase", self._random_bytes(SALT_BYTES), scrypt_n, SCRYPT_R, 1)

    def _moved(self, name: str, key: NamedKey, old: Keyring, new: Keyring) -> NamedKey:
        versions = {}
        for number, facts in key.versions.items():
            plain = old._plain(name, number)  # noqa: SLF001  # only this method moves keys to another root key
            versions[number] = new.version(name, number, plain, facts.created_at, self._random_bytes(NONCE_BYTES))
        return NamedKey(key.enabled, versions)

    def _another_version(self, keyring: Keyring, name: str, number: int, now_ms: int) -> Document:
        plain, nonce = self._random_bytes(KEY_BYTES), self._random_bytes(NONCE_BYTES)
        known = keyring.document.keys.get(name, NamedKey(True, {}))
        versions = {**known.versions, number: keyring.version(name, number, plain, now_ms, nonce)}
        return keyring.with_key(name, msgspec.structs.replace(known, versions=versions))

    @contextmanager
    def _changing(self) -> Iterator[Keyring]:
        """Hold the lock of the file, so that concurrent changes are not lost."""
        real = self.path.resolve()
        try:
            lock = os.open(real.with_name(real.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Invalid(f"{self.path}: cannot lock the keyring: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self.read()
        finally:
            os.close(lock)

    def _write(self, document: Document, *, new: bool = False) -> None:
        pretty: Any = msgspec.json.format(msgspec.json.encode(document), indent=2)
        try:
            # A symbolic link is resolved: replacing the link would leave destroyed keys in the old file.
            write_durably(self.path.resolve(), pretty + b"\n", 0o600, new=new)
        except FileExistsError:
            raise Conflict(f"{self.path}: the keyring already exists and is left unchanged") from None
        except OSError as error:
            raise Invalid(f"{self.path}: cannot write the keyring: {error.strerror}") from None
