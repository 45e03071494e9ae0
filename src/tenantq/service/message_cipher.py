"""Encryption of single messages, copies and results with the cipher of their tenant. Each is bound to its queue and ID."""

import re
from fnmatch import translate
from functools import lru_cache
from typing import TypeVar

import msgspec

from tenantq.domain.message import Delivery, Facts, NewMessage, Result
from tenantq.engine.tenant_snapshot import MessageCopy
from tenantq.errors import DecryptionFailed
from tenantq.store.keys import digest
from tenantq.vault.vault import TenantCipher

_Encrypted = TypeVar("_Encrypted", Delivery, Facts, MessageCopy)

_encode = msgspec.msgpack.Encoder().encode
_decode_attributes = msgspec.msgpack.Decoder(dict[str, str]).decode
_decode_result = msgspec.msgpack.Decoder(tuple[bytes | None, str | None]).decode


def encrypt_message(
    cipher: TenantCipher, queue: str, message: NewMessage, id: bytes, record: bytes, secret: re.Pattern[str]
) -> NewMessage:
    """Return a message with its encrypted body ``record``, secret attributes encrypted, and its digests."""
    attributes, encrypted_attributes = _encrypt_attributes(cipher, queue, id, message.attributes, secret)
    return msgspec.structs.replace(
        message,
        body=record,
        attributes=attributes,
        raw_id=id,
        encrypted=True,
        encrypted_attributes=encrypted_attributes,
        digest=cipher.digest(message.body) if message.key is not None else None,
        known_as=digest(message.body) if message.key is not None else None,
    )


def encrypt_result(cipher: TenantCipher, queue: str, id: bytes, result: Result) -> Result:
    """Return a result encrypted."""
    blob = cipher.encrypt(queue, id, "result", _encode((result.value, result.error)))
    return Result(result.status, blob, None, encrypted=True)


def encrypt_copy(cipher: TenantCipher, queue: str, one: MessageCopy, secret: re.Pattern[str]) -> MessageCopy:
    """Return an imported message encrypted."""
    origin, id = one.origin(queue), one.raw_id
    attributes, encrypted_attributes = _encrypt_attributes(cipher, origin, id, one.attributes, secret)
    body = cipher.encrypt(origin, id, "body", one.body)
    return msgspec.structs.replace(
        one, body=body, attributes=attributes, encrypted=True, encrypted_attributes=encrypted_attributes
    )


def _encrypt_attributes(
    cipher: TenantCipher, queue: str, id: bytes, attributes: dict[str, str], secret: re.Pattern[str]
) -> tuple[dict[str, str], bytes]:
    """Return the attributes that stay readable, and the secret ones encrypted."""
    hidden = {name: value for name, value in attributes.items() if secret.match(name) is not None}
    if not hidden:
        return attributes, b""
    visible = {name: value for name, value in attributes.items() if name not in hidden}
    return visible, cipher.encrypt(queue, id, "attributes", _encode(hidden))


def decrypt_or_error(cipher: TenantCipher, origin: str, one: _Encrypted) -> _Encrypted | DecryptionFailed:
    """Return a message decrypted, or the error if it was changed or is from another place."""
    attributes = one.attributes
    try:
        body = cipher.decrypt(origin, one.raw_id, "body", one.body)
        if one.encrypted_attributes:
            hidden = cipher.decrypt(origin, one.raw_id, "attributes", one.encrypted_attributes)
            attributes = {**attributes, **_decode_attributes(hidden)}
    except DecryptionFailed as error:
        return error
    return msgspec.structs.replace(one, body=body, attributes=attributes, encrypted=False, encrypted_attributes=b"")


def decrypt_result(cipher: TenantCipher, queue: str, id: bytes, result: Result) -> Result:
    """Return a result decrypted. Raises DecryptionFailed."""
    value, error = _decode_result(cipher.decrypt(queue, id, "result", result.value or b""))
    return Result(result.status, value, error)


def decrypt_facts(cipher: TenantCipher, facts: Facts) -> Facts:
    """Return a stored message decrypted, or without body and attributes and with a ``body_error``."""
    found = decrypt_or_error(cipher, facts.origin, facts)
    if isinstance(found, DecryptionFailed):
        return msgspec.structs.replace(
            facts, body=b"", attributes={}, encrypted_attributes=b"", body_error=found.code
        )  # fmt: skip
    return msgspec.structs.replace(found, encrypted=True)  # as it is stored


@lru_cache(maxsize=1_024)
def secret_names(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return a regular expression that matches names covered by any of the patterns."""
    return re.compile("|".join(map(translate, patterns)) or r"(?!)")
