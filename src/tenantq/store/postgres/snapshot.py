"""Snapshots of a PostgreSQL store: a read-only transaction that sees the rows as they were when it began.

While it is open, PostgreSQL keeps every row that was deleted or replaced since. So each has its own connection, its life is limited,
and the server ends one that is not used.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, LiteralString

import psycopg

from tenantq.errors import Unavailable
from tenantq.store.keys import after
from tenantq.store.postgres.client import PostgresClient
from tenantq.store.postgres.row_reader import PostgresRowReader
from tenantq.store.postgres.server_check import SessionLimits
from tenantq.store.postgres.session import BoundedConnection, PostgresRows, fetch
from tenantq.store.postgres.statements import Statements

if TYPE_CHECKING:
    from tenantq.store.interface import Items

_PAGE: Final = 256
_PAGE_BYTES: Final = 4 << 20
_BEGIN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class ReadTransaction:
    """A read-only transaction on its own connection. It sees one state of the store."""

    def __init__(self, client: PostgresClient, sql: Statements, use: str, life_ms: int) -> None:
        """Begin. Raises StoreFailed if the server does not answer, Unavailable later if it is used for longer than ``life_ms``."""
        limits = SessionLimits(client.settings.patience_ms, 0, life_ms)
        self._session = client.session(use, limits)
        self._ends = time.monotonic() + life_ms / 1_000
        self._life_ms = life_ms
        self._connection: BoundedConnection | None = None
        self.state = self._session.call(lambda one: self._begin(one, sql["read_state"]), stays_open=True)

    def _begin(self, connection: BoundedConnection, statement: LiteralString) -> PostgresRows:
        fetch(connection, _BEGIN)
        state = fetch(connection, statement)  # the first statement fixes what the transaction sees
        self._connection = connection
        return state

    def execute(self, statement: LiteralString, parameters: dict[str, Any]) -> PostgresRows:
        """Run a statement."""
        if self._connection is None:
            raise Unavailable("the snapshot is closed")
        if time.monotonic() >= self._ends:
            self.close()
            raise Unavailable(
                f"the snapshot is older than {self._life_ms} ms (postgres.snapshot_ms). Start again, or raise the setting."
            )
        try:
            return fetch(self._connection, statement, parameters)
        except psycopg.Error as error:
            self.close()
            raise Unavailable(f"the snapshot was lost: {' '.join(str(error).split())}. Start again.") from error

    def close(self) -> None:
        """End the transaction."""
        self._connection = None
        self._session.close()


class PostgresSnapshot:
    """A ``StoreSnapshot``."""

    def __init__(self, client: PostgresClient, sql: Statements, upper: bytes) -> None:
        self._upper = upper
        with ExitStack() as opened:
            opened.enter_context(client.open_snapshot())
            transaction = ReadTransaction(client, sql, "snapshot", client.settings.snapshot_ms)
            opened.callback(transaction.close)
            self._closing = opened.pop_all()
        self.state = transaction.state
        self._reader = PostgresRowReader(transaction.execute, sql)

    def get(self, family: str, key: bytes) -> bytes | None:
        return self._reader.get_many(family, [key])[0]

    def keys(self, family: str, lower: bytes, limit: int) -> list[bytes]:
        return self._reader.keys(family, lower, self._upper, limit)

    def items(self, family: str, lower: bytes, upper: bytes, limit: int, bytes_max: int | None = None) -> Items:
        return self._reader.items(family, lower, upper, limit, bytes_max)

    def walk(self, family: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        lower, upper = prefix, after(prefix)
        while page := self._reader.items(family, lower, upper, _PAGE, _PAGE_BYTES):
            yield from page
            lower = page[-1][0] + b"\0"

    def close(self) -> None:
        self._closing.close()
