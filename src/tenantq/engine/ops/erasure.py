"""What a deleted tenant leaves: a row that says what was erased, written with the deletion itself, until it is certified and after."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tenantq.engine.operation import Operation
from tenantq.journal.erasure_certificate import ErasureCertificate
from tenantq.store.keys import be64, tenant_prefix

if TYPE_CHECKING:
    from tenantq.domain.message import Caller
    from tenantq.engine.queue_state import TenantState
    from tenantq.engine.round import Round

ERASURE_ROW: Final = b"erasure/"
"""meta: erasure/<seq be64><tenant id be32> -> the certificate, unsigned until the last byte is gone."""

_encode = msgspec.msgpack.Encoder().encode
decode_erasure = msgspec.msgpack.Decoder(ErasureCertificate).decode


def put_erasure(round: Round, certificate: ErasureCertificate) -> None:
    """Write a certificate's row."""
    key = ERASURE_ROW + be64(certificate.seq) + tenant_prefix(certificate.tenant_id)
    round.batch.put(key, _encode(certificate), round.store.meta.handle)


class CertifyErasure(Operation):
    """Store the signed certificate in place of the unsigned one."""

    __slots__ = ("certificate",)
    journal_op = "certify_erasure"

    def __init__(self, system: TenantState, caller: Caller, certificate: ErasureCertificate) -> None:
        super().__init__(system, caller)
        self.certificate = certificate

    def execute(self, round: Round) -> None:
        """Write the row, and journal whose erasure it certifies."""
        put_erasure(round, self.certificate)
        one = self.certificate
        round.log_tenant(
            "certify_erasure", self.tenant, self.caller, f"{one.id}: tenant {one.tenant} ({one.tenant_id})"
        )
