"""The envelope that is stored in place of a body, attributes or a result of an encrypted tenant.

    format (1)   0xE1
    number (4)   big-endian: the number of the data key
    nonce (12)   random
    ciphertext   as long as the plaintext
    tag (16)     AES-256-GCM

The additional authenticated data bind an envelope to its place: format, number, tenant id (be32), kind (1), message id (16), queue
name. Every part but the last has a fixed width, so no two places have the same bytes.

Nonces are 96 random bits. With at most 2^30 uses of a key, the probability of two equal nonces is below 2^-36.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Final, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tenantq.domain.limits import ENCRYPTION_BYTES
from tenantq.errors import DecryptionFailed, Invalid
from tenantq.runtime.randomness import id_text

Field = Literal["body", "attributes", "result"]

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
"""Bytes that an envelope adds to its plaintext."""
assert OVERHEAD_BYTES == ENCRYPTION_BYTES, "the engine subtracts ENCRYPTION_BYTES when it charges for a body"

_KINDS: Final[dict[str, bytes]] = {"body": b"b", "attributes": b"a", "result": b"r"}
_ID_BYTES: Final = 16


def key_number(blob: bytes) -> int:
    """Return the number of the data key of an envelope. Raises DecryptionFailed if the bytes are not an envelope."""
    if len(blob) < OVERHEAD_BYTES or blob[0] != FORMAT:
        raise DecryptionFailed("The stored bytes are not an encrypted message in a format that this version reads.")
    return int.from_bytes(blob[1:5])


class PlainKey:
    """An unwrapped key with its times of use. No text shows it."""

    __slots__ = ("expires_at", "number", "refresh_at", "tenant_id")

    def __init__(self, tenant_id: int, number: int) -> None:
        self.tenant_id = tenant_id
        self.number = number
        self.refresh_at = 0  # monotonic: when to unwrap it again in the background
        self.expires_at = 0  # monotonic: end of its use


class DataKey(PlainKey):
    """One data key with its cipher."""

    __slots__ = ("_decrypt", "_encrypt", "_head", "_places")

    def __init__(self, tenant_id: int, number: int, key: bytes) -> None:
        super().__init__(tenant_id, number)
        cipher = AESGCM(key)
        self._encrypt = cipher.encrypt
        self._decrypt = cipher.decrypt
        self._head = _HEAD.pack(FORMAT, number)
        self._places = {kind: _PLACE.pack(FORMAT, number, tenant_id, code) for kind, code in _KINDS.items()}

    def encrypt(self, queue: str, id: bytes, kind: Field, plaintext: bytes, nonce: bytes) -> bytes:
        return self.encrypt_many(queue, kind, [id], [plaintext], nonce)[0]

    def decrypt(self, queue: str, id: bytes, kind: Field, blob: bytes) -> bytes:
        """Return the plaintext of one envelope. Raises DecryptionFailed."""
        (plaintext,) = self.decrypt_many(queue, kind, [id], [blob])
        if isinstance(plaintext, DecryptionFailed):
            raise plaintext
        return plaintext

    def encrypt_many(
        self, queue: str, kind: Field, ids: Sequence[bytes], plaintexts: Sequence[bytes], nonces: bytes
    ) -> list[bytes]:
        """Return the envelopes of ``plaintexts``. ``nonces`` has NONCE_BYTES of strong randomness for each, used once."""
        head, encrypt, place, name = self._head, self._encrypt, self._place(kind, ids), queue.encode()
        records = []
        at = 0
        for id, plaintext in zip(ids, plaintexts, strict=True):
            nonce = nonces[at : at + NONCE_BYTES]
            at += NONCE_BYTES
            records.append(head + nonce + encrypt(nonce, plaintext, place + id + name))
        return records

    def decrypt_many(
        self, queue: str, kind: Field, ids: Sequence[bytes], blobs: Sequence[bytes]
    ) -> list[bytes | DecryptionFailed]:
        """Return the plaintext of each envelope, or the error if it is damaged or belongs to another key or place."""
        head, decrypt, place, name = self._head, self._decrypt, self._place(kind, ids), queue.encode()
        plaintexts: list[bytes | DecryptionFailed] = []
        for id, blob in zip(ids, blobs, strict=True):
            if blob[:5] != head:
                plaintexts.append(_broken(queue, id))
                continue
            try:
                plaintexts.append(decrypt(blob[5:17], blob[17:], place + id + name))
            except (InvalidTag, ValueError):  # ValueError: too short
                plaintexts.append(_broken(queue, id))
        return plaintexts

    def _place(self, kind: Field, ids: Sequence[bytes]) -> bytes:
        place = self._places.get(kind)
        if place is None or any(len(id) != _ID_BYTES for id in ids):
            raise Invalid(
                f"envelope: an id must have {_ID_BYTES} bytes and the kind must be one of {', '.join(_KINDS)}"
            )
        return place


def _broken(queue: str, id: bytes) -> DecryptionFailed:
    return DecryptionFailed(queue=queue, id=id_text(id))


class TenantSecret(PlainKey):
    """A tenant's secret, from which the key of its digests is derived. Digests of different tenants are not comparable."""

    __slots__ = ("_keyed",)

    def __init__(self, tenant_id: int, number: int, secret: bytes) -> None:
        super().__init__(tenant_id, number)
        info = b"tenantq digest v1" + tenant_id.to_bytes(4)
        key = HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)
        self._keyed = hashlib.blake2b(key=key, digest_size=DIGEST_BYTES)

    def digest(self, plaintext: bytes) -> bytes:
        """Return a keyed digest of ``plaintext``, DIGEST_BYTES long."""
        hash = self._keyed.copy()
        hash.update(plaintext)
        return hash.digest()
