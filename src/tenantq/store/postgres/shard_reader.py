"""Reads a shard of a PostgreSQL store, whether or not a server owns it. Takes no ownership and writes nothing.

One read-only transaction shows all rows as they were when it began.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from tenantq.errors import StoreFailed, StoreFormat, Unavailable
from tenantq.store.change_batch import remote_families
from tenantq.store.interface import Beat, Family, StoreReader
from tenantq.store.local_identity import check_identity
from tenantq.store.postgres.client import PostgresClient
from tenantq.store.postgres.row_reader import PostgresRowReader
from tenantq.store.postgres.snapshot import ReadTransaction
from tenantq.store.postgres.statements import Statements
from tenantq.store.postgres.store import MARK
from tenantq.store.postgres.tables import Tables
from tenantq.store.shard_lease import ShardHeld, read_beat

_LIFE_MS = 6 * 3_600_000
"""The longest examination. While it runs, deleted rows of all shards keep their space."""


class ShardReader(StoreReader):
    """One shard, as it was on opening. Deleted rows of the whole database keep their space until it is closed."""

    def __init__(self, path: Path, client: PostgresClient, shard: str, *, must_be_free: bool = False) -> None:
        """Open it. ``path`` has the local files of a server, if it exists.

        Raises StoreFormat if the store is missing, ShardHeld if it ``must_be_free`` and a server owns it, Unavailable if
        PostgreSQL does not answer.
        """
        sql = Statements(client.settings.name, shard)
        try:
            _check_exists(client, sql, shard)
            self._transaction = ReadTransaction(client, sql, f"read {shard}", _LIFE_MS)
        except StoreFormat:
            raise
        except StoreFailed as error:
            raise Unavailable(error.message) from error
        self._files = TemporaryDirectory(prefix="tenantq-")
        self.path = Path(self._files.name)
        try:
            ((_, _, _, holder, id, beat, age_ms, left_ms),) = self._transaction.state
            if must_be_free and holder and left_ms:
                raise ShardHeld(client.address, holder, left_ms)  # noqa: TRY301  # closes the transaction
            check_identity(path, MARK, client.address, id, read_only=True)
            found = read_beat(client.address, beat)
            self._beat = msgspec.structs.replace(found, engine_ms=found.engine_ms + (age_ms or 0)) if found else None
        except BaseException:
            self.close()
            raise
        self._reader = PostgresRowReader(self._transaction.execute, sql)
        super().__init__(remote_families())

    def close(self) -> None:
        self._transaction.close()
        self._files.cleanup()

    def last_beat(self) -> Beat | None:
        return self._beat

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        return self._reader.get_many(family.name, keys)

    def scan(self, family: Family, lower: bytes, upper: bytes, limit: int, *, deleted_max: int = 0) -> list[bytes]:  # noqa: ARG002  # the server does not say what it passes
        return self._reader.keys(family.name, lower, upper, limit)

    def scan_items(self, family: Family, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return self._reader.items(family.name, lower, upper, limit)

    def last_item(self, family: Family, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        return self._reader.last_item(family.name, lower, upper)


def _check_exists(client: PostgresClient, sql: Statements, shard: str) -> None:
    """Raise StoreFormat unless the shard exists."""
    session = client.session(f"read {shard}")
    try:
        tables = Tables(client.address, client.settings.name, sql)
        exists = tables.exist(session) and tables.has_partition(session) and session.execute(sql["read_state"])
    finally:
        session.close()
    if not exists:
        raise StoreFormat(
            f"store {client.address}: no tenantq store with name and shard {client.settings.name}:{shard}"
        )
