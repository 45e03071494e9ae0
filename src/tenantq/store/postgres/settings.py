"""Settings of a PostgreSQL store besides its address."""

from typing import Annotated, Literal

import msgspec

from tenantq.domain.validation import about, between, matching
from tenantq.store.remote_settings import OwnershipLeaseMs, PatienceMs


class PostgresSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a PostgreSQL store is used."""

    name: Annotated[
        str,
        matching(
            "(?!pg_)[a-z][a-z0-9_]{0,39}",
            "1 to 40 characters of a-z, 0-9 and '_', with a letter first and not pg_",
            "Schema of the tables, so that several deployments can share a database.",
        ),
    ] = "tenantq"
    synchronous_commit: Annotated[
        Literal["on", "remote_write", "remote_apply"],
        about("What a commit waits for on synchronous standbys, as in PostgreSQL. Locally it is always flushed."),
    ] = "on"
    patience_ms: PatienceMs = 10_000
    lease_ms: OwnershipLeaseMs = 3_000
    snapshot_ms: Annotated[
        int, between(1_000, 21_600_000, "Longest life of a snapshot. While one is open, deleted rows keep their space.")
    ] = 600_000
