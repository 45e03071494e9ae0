"""The certificate of links between servers: made at every start, and vouched for by the proofs of the handshake."""

import datetime as dt
import hashlib
import ssl
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tenantq.runtime.durable_files import write_durably

FILE: Final = "link.pem"
_DAYS: Final = 3_650


class LinkCertificate:
    """A self-signed certificate, in a file that only the server's user can read."""

    def __init__(self, directory: Path) -> None:
        """Create the certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tenantq")])
        now = dt.datetime.now(dt.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=_DAYS))
            .sign(key, SHA256())
        )
        self.digest = hashlib.sha256(certificate.public_bytes(Encoding.DER)).digest()
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file = directory / FILE
        write_durably(file, private + certificate.public_bytes(Encoding.PEM), 0o600)
        self.server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.server_context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.server_context.load_cert_chain(file)


def client_context() -> ssl.SSLContext:
    """Return the context of the calling end. The handshake after it verifies the certificate, instead of an authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
