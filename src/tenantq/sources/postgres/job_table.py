"""Job tables in PostgreSQL: pgmq, River, Procrastinate and good_job."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec

from tenantq.errors import Invalid, Unavailable
from tenantq.sources.source import (
    BATCH_MESSAGES,
    InProgress,
    Mode,
    SourceBatch,
    SourceMessage,
    SourcePart,
    SourceQueue,
    even_ranges,
    text_attributes,
)


class JobTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table layout of one system. The file ``<file>.sql`` selects the columns of a message from ``{table}``."""

    kind: str
    file: str
    where: str  # condition on pg_tables
    key: str  # the column in which rows are ordered and deleted
    key_type: str
    missing: str  # the error if the table does not exist

    def query(self, table: str, name: str) -> str:
        """Return the query for one table, ready for more conditions."""
        text = (Path(__file__).parent / f"{self.file}.sql").read_text(encoding="utf-8")
        return text.replace("{table}", table).replace("{name}", name.replace("'", "''"))


TABLES: Final = {
    one.kind: one
    for one in (
        JobTable(
            kind="pgmq", file="pgmq", where="schemaname = 'pgmq' and tablename like 'q\\_%'", key="msg_id",
            key_type="bigint", missing="no pgmq queues found (tables pgmq.q_…)",
        ),
        JobTable(
            kind="river", file="river", where="tablename = 'river_job'", key="id", key_type="bigint",
            missing="no table river_job was found",
        ),
        JobTable(
            kind="procrastinate", file="procrastinate", where="tablename = 'procrastinate_jobs'", key="id",
            key_type="bigint", missing="no table procrastinate_jobs was found",
        ),
        JobTable(
            kind="good-job", file="good_job", where="tablename = 'good_jobs'", key="id", key_type="uuid",
            missing="no table good_jobs was found",
        ),
    )
}  # fmt: skip


class PostgresSource:
    """Reads a job table. Draining locks the rows of a batch against workers, and deletes them afterwards."""

    modes: tuple[Mode, ...] = ("snapshot", "drain")

    def __init__(self, url: str, kind: str, names: tuple[str, ...] = ()) -> None:
        """Connect. ``names``: only these queues. Raises Invalid or Unavailable."""
        try:
            import psycopg  # noqa: PLC0415  # an extra
            from psycopg import sql  # noqa: PLC0415
        except ImportError as error:
            raise Invalid(
                f"migrate-from {kind} requires the PostgreSQL client: run pip install '.[postgres]' in the checkout"
            ) from error
        self.kind = kind
        self.problems: dict[str, int] = {}
        self._layout, self._names, self._sql, self._error = TABLES[kind], names, sql, psycopg.Error
        try:
            self._connection: Any = psycopg.connect(url, connect_timeout=10)
        except psycopg.ProgrammingError as error:
            raise Invalid(f"source: not a PostgreSQL URL ({error})") from error
        except psycopg.Error as error:
            raise Unavailable(f"the source PostgreSQL does not answer: {error}") from error
        listing = f"select schemaname, tablename from pg_tables where {self._layout.where} order by 1, 2"  # noqa: S608  # of TABLES
        self._tables = self._asked(lambda: self._connection.execute(listing).fetchall())
        self._connection.commit()
        if not self._tables:
            self.close()
            raise Invalid(f"source: {self._layout.missing}. Check the database in the URL.")

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except self._error as error:
            raise Unavailable(f"the source PostgreSQL refused a query: {error}") from error

    def close(self) -> None:
        """Disconnect. Locked rows that were not deleted stay."""
        self._connection.close()

    def _query(self, schema: str, name: str) -> str:
        return self._layout.query(self._sql.Identifier(schema, name).as_string(self._connection), name)

    def queues(self) -> list[SourceQueue]:
        """Return the number of jobs in each queue by state."""
        counts: dict[str, dict[str, int]] = {}
        for schema, name in self._tables:
            query = f"select queue, state, count(*) from ({self._query(schema, name)}) as jobs group by 1, 2"  # noqa: S608
            for queue, state, count in self._asked(partial(self._fetch, query)):
                if not self._names or queue in self._names:
                    counts.setdefault(queue, {})[state] = count
        self._connection.commit()
        return [msgspec.convert({"name": queue, **found}, SourceQueue) for queue, found in sorted(counts.items())]

    def _fetch(self, query: str, values: tuple[Any, ...] | None = None) -> list[Any]:
        found: list[Any] = self._connection.execute(query, values).fetchall()
        return found

    def batches(self, mode: Mode, in_progress: InProgress) -> Iterator[SourceBatch]:
        """Yield all jobs by key. The batch of a drain is one transaction."""
        for schema, name in self._tables:
            yield from self._table_batches(schema, name, mode, in_progress)

    def _table_batches(
        self,
        schema: str,
        name: str,
        mode: Mode,
        in_progress: InProgress,
        first: str | None = None,
        end: str | None = None,
    ) -> Iterator[SourceBatch]:
        """Yield the jobs of a table from the key ``first`` up to, but without, the key ``end``."""
        bounds = [(">=", first), ("<", end)]
        while True:
            rows = self._asked(partial(self._page, schema, name, bounds, mode))
            if not rows:
                self._connection.rollback()
                break
            bounds[0] = (">", rows[-1][0])
            chosen = [row for row in rows if not self._names or row[1] in self._names]
            messages = [self._message(row, in_progress) for row in chosen]
            keys = [row[0] for row in chosen]
            if mode == "snapshot":
                self._connection.commit()
                yield SourceBatch(messages=messages)
            else:
                yield SourceBatch(messages=messages, done=partial(self._delete, schema, name, keys))
                self._connection.rollback()  # unlocks the rows that were not deleted

    def _page(self, schema: str, name: str, bounds: list[tuple[str, str | None]], mode: Mode) -> list[Any]:
        layout = self._layout
        given = [(sign, key) for sign, key in bounds if key is not None]
        condition = "".join(f" and {layout.key} {sign} %s::{layout.key_type}" for sign, _ in given)
        lock = " for update skip locked" if mode == "drain" else ""
        query = f"{self._query(schema, name)}{condition} order by {layout.key} limit {BATCH_MESSAGES}{lock}"
        return self._fetch(query, tuple(key for _, key in given) or None)

    # ---- in parts ----

    def parts(self, count: int) -> list[SourcePart]:
        """Divide each table by ranges of its key."""
        found: list[SourcePart] = []
        for schema, name in self._tables:
            for low, high in self._ranges(schema, name, count):
                found.append(SourcePart(order=len(found), what=(schema, name, low, high)))
        return found

    def _ranges(self, schema: str, name: str, count: int) -> list[tuple[str, str | None]]:
        if self._layout.key_type == "uuid":  # random, so the ranges have about the same size
            ranges = even_ranges(0, (1 << 128) - 1, count)
            return [(_uuid(low), _uuid(high) if high < 1 << 128 else None) for low, high in ranges]
        table = self._sql.Identifier(schema, name).as_string(self._connection)
        query = f"select min({self._layout.key}), max({self._layout.key}) from {table}"  # noqa: S608  # of TABLES
        ((low, high),) = self._asked(partial(self._fetch, query))
        self._connection.commit()
        return [] if low is None else [(str(start), str(end)) for start, end in even_ranges(low, high, count)]

    def part_batches(self, part: SourcePart, in_progress: InProgress, now_ms: int) -> Iterator[SourceBatch]:  # noqa: ARG002  # keys order them
        """Yield the jobs of one range."""
        schema, name, low, high = part.what
        return self._table_batches(schema, name, "snapshot", in_progress, low, high)

    def _delete(self, schema: str, name: str, keys: list[str]) -> None:
        layout = self._layout
        table = self._sql.Identifier(schema, name).as_string(self._connection)
        query = f"delete from {table} where {layout.key} = any(%s::{layout.key_type}[])"  # noqa: S608  # as above
        self._asked(lambda: self._connection.execute(query, (keys,)))
        self._asked(self._connection.commit)

    def _message(self, row: tuple[Any, ...], in_progress: InProgress) -> SourceMessage:
        key, queue, body, state, added_at, visible_at, priority, dead, group, attributes = row
        waits = state == "delayed" or (state == "in_progress" and in_progress == "keep-lease")
        return SourceMessage(
            key=key,
            queue=queue,
            body=body.encode(),
            attributes=text_attributes(attributes or {}),
            added_at=added_at,
            visible_at=visible_at if waits else None,
            priority=priority,
            group=group,
            dead=dead,
        )


def _uuid(number: int) -> str:
    return str(UUID(int=number))
