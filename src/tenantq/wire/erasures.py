"""Certificates of erased tenants."""

from tenantq.wire.base_types import WireReply


class ErasedKey(WireReply, frozen=True, kw_only=True):
    """A data key that was destroyed: number 0 is the tenant's secret; the SHA-256 of the wrapped key as it was stored."""

    number: int
    fingerprint: str


class ErasureReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A certificate of erasure, signed with the server's audit key."""

    format: int
    product: str
    id: str
    shard: str
    tenant: str
    tenant_id: int
    erased_at: int
    erased_by: str
    reason: str
    counts: dict[str, int]
    data_keys: list[ErasedKey]
    seq: int
    link: str
    certified_at: int  # 0: not complete yet
    key_id: str
    signature: str


class ErasuresReply(WireReply, frozen=True, kw_only=True):
    """All erasures, oldest first."""

    erasures: list[ErasureReply]
