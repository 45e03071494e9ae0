"""The tables of a PostgreSQL store: found, checked, created, or rewritten."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from psycopg import Connection, errors

from tenantq.errors import StoreFailed, StoreFormat
from tenantq.store.postgres.address import PostgresAddress
from tenantq.store.postgres.session import BoundedConnection, PostgresSession, fetch
from tenantq.store.postgres.statements import Statements

if TYPE_CHECKING:
    from psycopg.errors import Diagnostic

FORMAT: Final = "1"
_NUMBER: Final = re.compile(r"\d+")


class Tables:
    """The tables of one schema."""

    def __init__(self, address: PostgresAddress, schema: str, sql: Statements) -> None:
        self._address, self._schema, self._sql = address, schema, sql

    def exist(self, session: PostgresSession) -> bool:
        """Return whether they exist. Raises StoreFormat if they have another format, or the schema belongs to others."""
        return session.call(self._exist)

    def _exist(self, connection: Connection) -> bool:
        ((_, is_ours, has_tables),) = fetch(connection, self._sql["find_format"])
        if not is_ours and has_tables:
            raise StoreFormat(
                f"store {self._address}: the schema {self._schema!r} has tables of another program."
                " Choose another postgres.name."
            )
        if not is_ours:
            return False
        found = fetch(connection, self._sql["read_format"])
        if found != [(FORMAT,)]:
            shown = found[0][0] if found else "unknown"
            raise StoreFormat(
                f"store {self._address}: the schema {self._schema!r} has format {shown}; this program reads format {FORMAT}."
                " Use the program version that created it."
            )
        return True

    def create(self, session: PostgresSession) -> None:
        """Create them unless they exist. Raises StoreFormat."""
        if not self.exist(session):
            session.call(self._create)

    def _create(self, connection: BoundedConnection) -> None:
        with connection.transaction():
            fetch(connection, self._sql["lock_changes"])
            if self._exist(connection):
                return
            ((has_schema, *_),) = fetch(connection, self._sql["find_format"])
            if not has_schema:
                fetch(connection, self._sql["create_schema"])
            connection.execute(self._sql["create_tables"], prepare=False)
            fetch(connection, self._sql["write_format"], {"format": FORMAT})

    def has_partition(self, session: PostgresSession) -> bool:
        """Return whether the shard has a partition."""
        found: bool = session.execute(self._sql["find_partition"])[0][0]
        return found

    def create_partition(self, session: PostgresSession) -> None:
        """Create the partition of the shard unless it exists."""
        if not self.has_partition(session):
            session.call(self._create_partition)

    def _create_partition(self, connection: BoundedConnection) -> None:
        with connection.transaction():
            fetch(connection, self._sql["lock_changes"])
            if not fetch(connection, self._sql["find_partition"])[0][0]:
                connection.execute(self._sql["create_partition"], prepare=False)


def rewrite(connection: BoundedConnection, statement: Any) -> int | None:
    """Write a table to new files and return how many deleted rows it kept, because a transaction can see them.

    Return None, and change nothing, if a transaction that has read the table, or a vacuum, keeps it locked.
    """
    details: list[str] = []

    def note(notice: Diagnostic) -> None:
        details.append(notice.message_detail or "")

    connection.add_notice_handler(note)
    try:
        connection.execute(statement, prepare=False)
    except errors.LockNotAvailable:
        return None
    numbers = [int(found[0]) for detail in details if (found := _NUMBER.match(detail)) is not None]
    if not numbers:
        raise StoreFailed("the server does not report how many deleted rows it kept.")
    return max(numbers)
