"""The files of a PostgreSQL store: a shard's table, written to new files without deleted rows."""

import time
from typing import Final

from tenantq.errors import StoreFailed
from tenantq.store.postgres.client import PostgresClient
from tenantq.store.postgres.server_check import SessionLimits
from tenantq.store.postgres.statements import Statements
from tenantq.store.postgres.tables import rewrite
from tenantq.store.server_files import UNBOUNDED, ServerFiles

_LOCK_MS: Final = 500
"""How long a rewrite waits for readers."""
_PAUSE_S: Final = 0.2
"""Pause before a table is rewritten again, for the commits that wait."""


class PostgresFiles(ServerFiles):
    """The files of one shard's table."""

    own_backups = (
        "a PostgreSQL store is backed up by PostgreSQL: use pg_dump or pg_basebackup (docs/how-to/run-a-cluster.md)"
    )

    def __init__(self, client: PostgresClient, sql: Statements, shard: str) -> None:
        self._client, self._sql, self._shard = client, sql, shard

    def rewrite(self) -> bool:
        """Have PostgreSQL write the shard's table to new files. Commits wait meanwhile, so it must take less than their patience.

        Return False if a transaction can still see deleted rows, or has read the table. Raises StoreFailed unless PostgreSQL
        confirms it. The write-ahead log, standbys and backups follow their own rules: see docs/internals/stores.md.
        """
        bound_ms = self._client.settings.patience_ms // 2
        limits = SessionLimits(bound_ms, min(bound_ms // 2, _LOCK_MS))  # commits queue behind it for the lock
        session = self._client.session(f"erase {self._shard}", limits, patience_ms=bound_ms)
        try:
            ends = time.monotonic() + bound_ms / 1_000
            while kept := session.call(lambda connection: rewrite(connection, self._sql["rewrite_partition"])):
                if time.monotonic() >= ends:
                    break
                time.sleep(_PAUSE_S)  # most transactions that can see deleted rows end soon
        except StoreFailed as error:
            raise StoreFailed(f"{error.message} Deleted rows are still in the store's files.") from error
        finally:
            session.close()
        return kept == 0

    def free_bytes(self) -> int:
        """Return 0 for a while after the server had no space, else more than any reserve: a client cannot ask for more."""
        return 0 if self._client.is_full else UNBOUNDED

    def location(self) -> str:
        """Return the address of the database."""
        return str(self._client.address)
