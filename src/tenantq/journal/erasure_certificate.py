"""The signed certificate of an erasure: what was destroyed, who did it and why."""

from __future__ import annotations

from typing import Final

import msgspec

from tenantq.errors import Invalid
from tenantq.journal.signing import SignedDocument, SigningKey

FORMAT: Final = 1


class DestroyedKey(msgspec.Struct, frozen=True):
    """A destroyed data key."""

    number: int  # 0: the tenant's secret
    fingerprint: str  # SHA-256 of the wrapped key as it was stored, hex


class ErasureCertificate(SignedDocument, frozen=True, kw_only=True):
    """What a server certifies after it has erased a tenant."""

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
    link: str  # that record's hash, hex, which fixes the journal up to it
    certified_at: int = 0  # wall clock: since then no byte of it is in the store

    def certified(self, key: SigningKey, now_ms: int) -> ErasureCertificate:
        """Return it with the time of certification, signed."""
        return msgspec.structs.replace(self, certified_at=now_ms).signed(key)


def read_certificate(data: bytes) -> ErasureCertificate:
    """Return the certificate in a JSON document. Raises Invalid."""
    certificate = ErasureCertificate.parse(data, "certificate: not an erasure certificate")
    if certificate.product != "tenantq" or certificate.format != FORMAT:
        raise Invalid(f"certificate: unsupported format {certificate.format} (supported: {FORMAT})")
    return certificate
