"""The open store of one shard in PostgreSQL. One transaction applies each round."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from pathlib import Path
from secrets import token_bytes
from typing import Any, Final

from psycopg.types.numeric import Int8

from tenantq.errors import DiskFull, StoreFailed
from tenantq.store.change_batch import ChangeBatch, remote_families
from tenantq.store.connection_figures import connection_figures
from tenantq.store.directory_lock import DirectoryLock
from tenantq.store.interface import Beat, Family, Store, StoreFigure
from tenantq.store.keys import FAMILIES
from tenantq.store.local_identity import check_identity
from tenantq.store.postgres.client import PostgresClient
from tenantq.store.postgres.files import PostgresFiles
from tenantq.store.postgres.ownership import ShardOwnership
from tenantq.store.postgres.row_reader import PostgresRowReader, stored_key
from tenantq.store.postgres.session import BoundedConnection, PostgresRows
from tenantq.store.postgres.snapshot import PostgresSnapshot
from tenantq.store.postgres.statements import Statements
from tenantq.store.postgres.tables import Tables
from tenantq.store.shard_lease import ReleaseSignal, claim_when_free

MARK: Final = "postgres_store"
"""The file of a data directory with the id of the PostgreSQL store that its local files belong to."""
_RANGES_S: Final = 600
"""How long a commit that deletes ranges may take: PostgreSQL deletes about 500,000 rows per second, one by one."""


class PostgresStore(Store):
    """The store of a shard in PostgreSQL, owned by this process."""

    def __init__(
        self,
        path: Path,
        client: PostgresClient,
        shard: str,
        *,
        wait_ms: int = 0,
        released: ReleaseSignal | None = None,
    ) -> None:
        """Claim the shard and open it; its local files are in ``path``. Blocks until PostgreSQL answers.

        Waits up to ``wait_ms`` for another owner to release the shard, which ``released`` can report.

        Raises ShardHeld while another process owns it, StoreLocked, StoreFormat, Invalid if the server is not durable, StoreFailed
        if it does not respond.
        """
        super().__init__(remote_families())
        self.path = path
        self._address = client.address
        self._client = client
        self._sql = sql = Statements(client.settings.name, shard)
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with ExitStack() as opened:
            opened.enter_context(closing(DirectoryLock(path)))
            opened.enter_context(client.open_shard())
            self._session = session = opened.enter_context(closing(client.session(f"shard {shard}")))
            self._prepare()
            settings = client.settings
            self._owner = owner = claim_when_free(
                lambda: ShardOwnership(session, client.keeper, sql, settings.lease_ms, settings.patience_ms),
                wait_ms,
                released,
            )
            opened.callback(owner.give_up)
            check_identity(path, MARK, client.address, owner.id, read_only=False)
            self._closing = opened.pop_all()
        client.check.in_use = True
        self._reader = PostgresRowReader(self._read, sql)
        self.files = PostgresFiles(client, sql, shard)
        self.ownership = self.sync_marker = owner.lease

    # ---- opening and closing ----

    def _prepare(self) -> None:
        """Find or create the tables. Raises StoreFormat before anything is written if they belong to another store."""
        tables = Tables(self._client.address, self._client.settings.name, self._sql)
        if tables.exist(self._session) and tables.has_partition(self._session):
            state = self._session.execute(self._sql["read_state"])
            if state:
                check_identity(self.path, MARK, self._address, state[0][4], read_only=True)
            return
        check_identity(self.path, MARK, self._address, "", read_only=True)
        tables.create(self._session)
        tables.create_partition(self._session)

    def last_beat(self) -> Beat | None:
        return self._owner.lease.last

    def close(self) -> None:
        """Give the shard up, so that another server can own it at once, and disconnect."""
        self._drop_families()
        self._closing.close()

    # ---- reading ----

    def _read(self, statement: Any, parameters: dict[str, Any]) -> PostgresRows:
        """Run a statement, and confirm that this process owned the shard until then. If not, this ownership ends."""
        try:
            found = self._session.execute(statement, parameters)
            self._owner.confirm()
        except StoreFailed as error:
            self._owner.lease.fail(error)
            raise
        return found

    def get_many(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        return self._reader.get_many(family.name, keys)

    def scan(self, family: Family, lower: bytes, upper: bytes, limit: int, *, deleted_max: int = 0) -> list[bytes]:  # noqa: ARG002  # the server does not say what it passes
        return self._reader.keys(family.name, lower, upper, limit)

    def scan_items(self, family: Family, lower: bytes, upper: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return self._reader.items(family.name, lower, upper, limit)

    def last_item(self, family: Family, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        return self._reader.last_item(family.name, lower, upper)

    def snapshot(self, lower: bytes, upper: bytes, *families: str) -> PostgresSnapshot:  # noqa: ARG002  # it has all rows
        owner = self._owner
        taken = PostgresSnapshot(self._client, self._sql, upper)
        try:
            owner.check(taken.state, owner.commit)
        except BaseException:
            taken.close()
            raise
        return taken

    # ---- writing ----

    def new_batch(self) -> ChangeBatch:
        return ChangeBatch()

    def write(self, batch: ChangeBatch) -> None:
        """Apply a batch in one transaction. With ``durability = "fsync"`` it is durable afterwards."""
        if batch.is_empty():
            return
        owner = self._owner
        beat, age_ms = owner.lease.beat_to_store()
        number = owner.commit + 1
        steps = _steps(batch)
        parameters = {
            "number": Int8(number),
            "previous": Int8(owner.commit),
            "nonce": token_bytes(8),
            "epoch": Int8(owner.epoch),
            "word": owner.word,
            "lease_ms": Int8(owner.lease.lease_ms),
            "beat": beat,
            "age_ms": Int8(age_ms) if age_ms is not None else None,
        }
        takes_long = bool(batch.ranges)
        try:
            sent = self._session.call(
                lambda connection: self._commit(connection, steps, parameters, takes_long=takes_long),
                takes_long=takes_long,
            )
        except DiskFull:
            self._client.note_full()
            raise
        if sent is None:
            owner.check_commit(self._session.execute(self._sql["read_state"]))
            return
        owner.commit = number
        owner.lease.renewed(sent)

    def _commit(
        self,
        connection: BoundedConnection,
        steps: list[tuple[str, dict[str, Any]]],
        parameters: dict[str, Any],
        *,
        takes_long: bool,
    ) -> float | None:
        """Send a round in one go. Return when it was sent; None if the shard's row did not accept it."""
        sent = time.monotonic()
        with connection.patiently(_RANGES_S if takes_long else 0), connection.pipeline():
            connection.execute("BEGIN")
            if takes_long:
                connection.execute(self._sql["take_time"], {"statement_ms": str(_RANGES_S * 1_000)})
            fence = connection.execute(self._sql["fence"], parameters)
            for name, rows in steps:
                connection.execute(self._sql[name], parameters | rows)
            done = connection.execute("COMMIT")
        if done.statusmessage != "COMMIT":
            raise StoreFailed(f"store {self._address}: the server answered {done.statusmessage} to COMMIT.")
        return sent if fence.rowcount == 1 else None

    def sync(self) -> None:
        """Do nothing: a commit returns when it is durable, and so the claim made everything found on opening durable."""

    def figures(self) -> list[StoreFigure]:
        """Return the health of the connections to PostgreSQL, from memory."""
        return connection_figures("postgres", "PostgreSQL", [self._session], is_up=not self.ownership.is_doubtful)


def _steps(batch: ChangeBatch) -> list[tuple[str, dict[str, Any]]]:
    """Return the statements of a batch with their arrays: ranges first, because they come before single rows in it."""
    steps: list[tuple[str, dict[str, Any]]] = []
    if batch.ranges:
        lowers = [stored_key(FAMILIES[number], lower) for number, lower, _ in batch.ranges]
        uppers = [stored_key(FAMILIES[number], upper) for number, _, upper in batch.ranges]
        steps.append(("delete_ranges", {"lowers": lowers, "uppers": uppers}))
    gone: list[bytes] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    for number, rows in enumerate(batch.changed):
        family = bytes((number,))
        for key, value in rows.items():
            if value is None:
                gone.append(family + key)
            else:
                keys.append(family + key)
                values.append(value)
    if gone:
        steps.append(("delete_rows", {"keys": gone}))
    if keys:
        steps.append(("put_rows", {"keys": keys, "values": values}))
    return steps
