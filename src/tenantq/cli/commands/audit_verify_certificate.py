"""``tenantq audit verify-certificate``: verify the signature of a certificate of erasure."""

from pathlib import Path
from typing import BinaryIO

import click

from tenantq.cli import exit_codes
from tenantq.cli.options import FILE
from tenantq.cli.output import Output, output_command
from tenantq.domain.formatting import show_time
from tenantq.journal.erasure_certificate import read_certificate
from tenantq.journal.signing import PublicKey


@output_command(name="verify-certificate")
@click.argument("file", type=click.File("rb"))
@click.option("--public-key", type=FILE, required=True, help="Public key of the server (audit_key.pub).")
def verify_certificate(file: BinaryIO, public_key: Path) -> Output:
    """Verify the signature of an erasure certificate, offline. FILE '-' is stdin."""
    key = PublicKey.load(public_key)
    certificate = read_certificate(file.read())
    valid = certificate.is_signed_by(key)
    text = f"not signed by key {key.id}, or changed after signing"
    if valid:
        text = (
            f"signed by key {key.id}: tenant {certificate.tenant} ({certificate.tenant_id}) was erased at"
            f" {show_time(certificate.erased_at)} by {certificate.erased_by}"
        )
    code = exit_codes.OK if valid else exit_codes.ERROR
    return Output({"valid": valid, "certificate": certificate}, text, code=code)
