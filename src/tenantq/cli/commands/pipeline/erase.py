"""``tenantq pipeline erase``: remove a tenant from every layer and the archive, with a certificate."""

from pathlib import Path

import click

from tenantq.cli.commands.pipeline import options
from tenantq.cli.commands.pipeline.spark_runtime import spark_command
from tenantq.cli.confirmation import confirmed_reason, destroys
from tenantq.cli.options import DIRECTORY
from tenantq.cli.output import Output, output_command
from tenantq.runtime.clock import SystemClock


@output_command()
@options.on_lake
@click.option("--tenant", required=True, metavar="NAME", help="Tenant to erase.")
@click.option("--sign-with", type=DIRECTORY, metavar="DATA_DIR", help="Data directory whose audit key signs the certificate.")  # fmt: skip
@destroys
def erase(
    lake_path: str, tenant: str, *, sign_with: Path | None, yes: bool, reason: str | None, master: str | None
) -> Output:  # fmt: skip
    """Erase a tenant from all tables and the archive, verify it, and write a certificate.

    The tenant's rows up to now never return, even if the journal is processed again. The journal does not change.

    \b
    Exit codes:
      0  erased; no rows remain
      3  the lake has no rows of the tenant
      7  the tenant is under legal hold, or another run is changing the lake
    """
    why = confirmed_reason(f"This erases tenant {tenant} from the lake and its archive", tenant, yes=yes, reason=reason)
    from tenantq.journal.signing import KEY_FILE, SigningKey  # noqa: PLC0415  # --help must not need them

    if sign_with is not None and not (sign_with / KEY_FILE).is_file():
        raise click.UsageError(f"--sign-with {sign_with}: contains no {KEY_FILE}.")
    key = SigningKey.load_or_make(sign_with) if sign_with is not None else None
    with spark_command(master, meaning="; run it again: an erasure is complete when its certificate exists") as work:
        from tenantq.pipeline.lake import erasure  # noqa: PLC0415  # needs Spark

        lake = options.open_lake(lake_path)
        lake.settle()
        now_ms = SystemClock().wall_ms()
        certificate, file = erasure.erase(work.spark, lake, tenant, why, now_ms, key, work.progress.begin)
    return Output(
        certificate,
        f"erased {certificate.rows_removed} rows in {len(certificate.removals)} partitions; rows left: "
        f"{sum(certificate.rows_left.values())} in {len(certificate.rows_left)} tables read again",
        f"certificate {file} sha256 {certificate.sha256}{' signed' if certificate.signature else ''}",
    )
