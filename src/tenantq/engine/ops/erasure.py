"""The certificate row of a deleted tenant. It is written with the deletion and signed later."""

from dataclasses import dataclass
from typing import Final

import msgspec

from tenantq.engine.effects import Effects
from tenantq.engine.operation import Operation
from tenantq.journal.erasure_certificate import ErasureCertificate
from tenantq.store.keys import be64, tenant_prefix

ERASURE_ROW: Final = b"erasure/"
"""meta: erasure/<seq be64><tenant id be32> -> the certificate, unsigned until the last byte is gone."""

_encode = msgspec.msgpack.Encoder().encode
decode_erasure = msgspec.msgpack.Decoder(ErasureCertificate).decode


def put_erasure(effects: Effects, certificate: ErasureCertificate) -> None:
    """Write a certificate's row."""
    key = ERASURE_ROW + be64(certificate.seq) + tenant_prefix(certificate.tenant_id)
    effects.batch.put(key, _encode(certificate), effects.store.meta.handle)


@dataclass(eq=False)
class CertifyErasure(Operation[None]):
    """Store the signed certificate in place of the unsigned one."""

    certificate: ErasureCertificate
    journal_op = "certify_erasure"

    def execute(self, effects: Effects) -> None:
        """Write the row, and journal whose erasure it certifies."""
        put_erasure(effects, self.certificate)
        one = self.certificate
        details = f"{one.id}: tenant {one.tenant} ({one.tenant_id})"
        effects.log_tenant("certify_erasure", self.tenant, self.caller, details)
