"""The certificate of an erasure: what was destroyed, by whom and why, signed, so that anybody with the public key can check it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.errors import Invalid

if TYPE_CHECKING:
    from tenantq.journal.signing import PublicKey, PublicKeys, SigningKey

FORMAT: Final = 1


class DestroyedKey(msgspec.Struct, frozen=True):
    """A data key that was destroyed."""

    number: int  # 0: the tenant's secret
    fingerprint: str  # SHA-256 of the wrapped key as it was stored, hex


class ErasureCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """What a server certifies when it has erased a tenant."""

    format: int = FORMAT
    product: str = "tenantq"
    id: str
    shard: str
    tenant: str
    tenant_id: int
    erased_at: int  # wall clock
    erased_by: str  # principal
    reason: str
    counts: dict[str, int]  # queues, messages, bytes, keys, grants
    data_keys: tuple[DestroyedKey, ...]
    seq: int  # the journal record of the deletion
    link: str  # that record's hash, hex: what is in the journal up to here is fixed by it
    certified_at: int = 0  # wall clock: from here on no byte of it is in the store's tables or log
    key_id: str = ""
    signature: str = ""

    def signed_text(self) -> bytes:
        """Return the bytes that are signed: everything but the signature."""
        return msgspec.json.encode(msgspec.structs.replace(self, signature=""), order="sorted")

    def signed(self, key: SigningKey, now_ms: int) -> ErasureCertificate:
        """Return it certified and signed."""
        whole = msgspec.structs.replace(self, certified_at=now_ms, key_id=key.public.id)
        return msgspec.structs.replace(whole, signature=key.sign(whole.signed_text()))


def read_certificate(data: bytes) -> ErasureCertificate:
    """Return the certificate in a JSON document, or raise Invalid."""
    try:
        certificate = msgspec.json.decode(data, type=ErasureCertificate)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"certificate: is no erasure certificate: {error}") from error
    if certificate.product != "tenantq" or certificate.format != FORMAT:
        raise Invalid(f"certificate: is of format {certificate.format}; this program reads format {FORMAT}")
    return certificate


def check_certificate(certificate: ErasureCertificate, key: PublicKey | PublicKeys) -> bool:
    """Tell whether the certificate is as the owner of ``key`` signed it."""
    return bool(certificate.signature) and key.verifies(certificate.signature, certificate.signed_text())
