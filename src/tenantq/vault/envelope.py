"""The record that stands in the store in place of a body, attributes or a result of an encrypted tenant.

    format (1)   0xE1
    number (4)   big-endian: which of the tenant's data keys
    nonce (12)   random
    ciphertext   as long as the plaintext
    tag (16)     AES-256-GCM

Authenticated beside it, so that a record opens nowhere but where it was made (AAD): format, number, tenant id (be32), kind (1),
message id (16), queue name. Every part but the last has a fixed width, so no two places have the same bytes.

Nonces are random, 96 bits. With the bound of 2^30 uses of a key, the chance that any two of its nonces are equal is below 2^-36.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, Final, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tenantq.domain.limits import SEAL_BYTES
from tenantq.errors import Invalid, SealBroken
from tenantq.runtime.randomness import id_text

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["body", "attributes", "result"]

FORMAT: Final = 0xE1
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
DIGEST_BYTES: Final = 16
NUMBER_MAX: Final = (1 << 32) - 1

_HEAD = struct.Struct(">BI")
_PLACE = struct.Struct(">BIIc")  # format, number, tenant id, kind
_CIPHERTEXT_AT: Final = _HEAD.size + NONCE_BYTES
OVERHEAD_BYTES: Final = _CIPHERTEXT_AT + TAG_BYTES
"""How much longer a record is than its plaintext."""
assert OVERHEAD_BYTES == SEAL_BYTES, "what the engine takes off when it charges for a body"

_KINDS: Final[dict[str, bytes]] = {"body": b"b", "attributes": b"a", "result": b"r"}
_ID_BYTES: Final = 16


def is_sealed(blob: bytes) -> bool:
    """Tell whether these bytes have the form of a record. Plaintext may have it by chance: a stored flag decides."""
    return len(blob) >= OVERHEAD_BYTES and blob[0] == FORMAT


def key_number(blob: bytes) -> int:
    """Return the number of the data key that a record was sealed with; SealBroken: this is no record."""
    if len(blob) < OVERHEAD_BYTES or blob[0] != FORMAT:
        raise SealBroken("These stored bytes are not a record of an encrypted message of a version this program reads.")
    return int.from_bytes(blob[1:5])


class PlainKey:
    """A key in memory, with the time it may be used. It never shows in a text."""

    __slots__ = ("expires_at", "number", "refresh_at", "tenant_id")

    def __init__(self, tenant_id: int, number: int) -> None:
        self.tenant_id = tenant_id
        self.number = number
        self.refresh_at = 0  # monotonic: from when on it is unwrapped anew, beside its use
        self.expires_at = 0  # monotonic: from when on it may not be used

    def __repr__(self) -> str:
        return f"{type(self).__name__}(tenant {self.tenant_id}, number {self.number})"


class DataKey(PlainKey):
    """One data key, ready to seal and open. The cipher is set up once."""

    __slots__ = ("_decrypt", "_encrypt", "_head", "_places")

    def __init__(self, tenant_id: int, number: int, key: bytes) -> None:
        super().__init__(tenant_id, number)
        cipher = AESGCM(key)
        self._encrypt = cipher.encrypt
        self._decrypt = cipher.decrypt
        self._head = _HEAD.pack(FORMAT, number)
        self._places = {kind: _PLACE.pack(FORMAT, number, tenant_id, code) for kind, code in _KINDS.items()}

    def seal(self, queue: str, id: bytes, kind: Kind, plaintext: bytes, nonce: bytes) -> bytes:
        """Return the record of ``plaintext``. ``nonce`` is NONCE_BYTES of strong randomness, for this record alone."""
        if len(id) != _ID_BYTES or kind not in self._places:
            raise _no_place()
        sealed = self._encrypt(nonce, plaintext, self._places[kind] + id + queue.encode())
        return self._head + nonce + sealed

    def seal_bodies(self, queue: str, ids: Sequence[bytes], bodies: Sequence[bytes], nonces: bytes) -> list[bytes]:
        """Return the records of many bodies. ``nonces`` are NONCE_BYTES for each; ids are 16 bytes each, as the engine makes them."""
        head, place, encrypt, name = self._head, self._places["body"], self._encrypt, queue.encode()
        records = []
        at = 0
        for id, body in zip(ids, bodies, strict=True):
            nonce = nonces[at : at + NONCE_BYTES]
            at += NONCE_BYTES
            records.append(head + nonce + encrypt(nonce, body, place + id + name))
        return records

    def open_bodies(self, queue: str, ids: Sequence[bytes], blobs: Sequence[bytes]) -> list[bytes | SealBroken]:
        """Return the plaintext of many bodies; in the place of one that does not open with this key, why."""
        place, decrypt, name, head = self._places["body"], self._decrypt, queue.encode(), self._head
        bodies: list[bytes | SealBroken] = []
        for id, blob in zip(ids, blobs, strict=True):
            if blob[:5] != head:
                bodies.append(_broken(queue, id))
                continue
            try:
                bodies.append(decrypt(blob[5:17], blob[17:], place + id + name))
            except (InvalidTag, ValueError):  # ValueError: fewer bytes than a nonce and a tag have
                bodies.append(_broken(queue, id))
        return bodies

    def open(self, queue: str, id: bytes, kind: Kind, blob: bytes) -> bytes:
        """Return the plaintext of a record made with this key; SealBroken: it is not whole, or was made for another place."""
        if len(id) != _ID_BYTES or kind not in self._places:
            raise _no_place()
        if blob[:5] != self._head:
            raise _broken(queue, id)
        try:
            return self._decrypt(blob[5:17], blob[17:], self._places[kind] + id + queue.encode())
        except (InvalidTag, ValueError):  # ValueError: fewer bytes than a nonce and a tag have
            raise _broken(queue, id) from None


def _no_place() -> Invalid:
    return Invalid(f"sealed: an id has {_ID_BYTES} bytes, and a kind is one of {', '.join(_KINDS)}")


def _broken(queue: str, id: bytes) -> SealBroken:
    return SealBroken(queue=queue, id=id_text(id))


class TenantSecret(PlainKey):
    """A tenant's secret, from which the key of its digests comes. Digests of different tenants cannot be compared."""

    __slots__ = ("_keyed",)

    def __init__(self, tenant_id: int, number: int, secret: bytes) -> None:
        super().__init__(tenant_id, number)
        info = b"tenantq digest v1" + tenant_id.to_bytes(4)
        key = HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)
        self._keyed = hashlib.blake2b(key=key, digest_size=DIGEST_BYTES)

    def digest(self, plaintext: bytes) -> bytes:
        """Return DIGEST_BYTES that stand for ``plaintext``, and say nothing of it to who lacks the secret."""
        hash = self._keyed.copy()
        hash.update(plaintext)
        return hash.digest()
