"""``tenantq audit verify-certificate``: whether a certificate of erasure is as the server signed it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tenantq.cli import exit_codes
from tenantq.cli.output import json_option, print_json
from tenantq.domain.formatting import show_time
from tenantq.journal.erasure_certificate import read_certificate
from tenantq.journal.signing import PublicKey

if TYPE_CHECKING:
    from typing import BinaryIO


@click.command("verify-certificate")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--public-key",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="The server's public key (audit_key.pub).",
)
@json_option
def verify_certificate(file: BinaryIO, public_key: Path, *, as_json: bool) -> int:
    """Check offline that a certificate of erasure is as the server signed it; FILE '-' is stdin."""
    key = PublicKey.load(public_key)
    certificate = read_certificate(file.read())
    valid = certificate.is_signed_by(key)
    if as_json:
        print_json({"valid": valid, "certificate": certificate})
    elif valid:
        click.echo(
            f"signed by key {key.id}: tenant {certificate.tenant} ({certificate.tenant_id}) was erased at"
            f" {show_time(certificate.erased_at)} by {certificate.erased_by}"
        )
    else:
        click.echo(f"not signed by key {key.id}, or changed since")
    return exit_codes.OK if valid else exit_codes.ERROR
