"""Reading rows of one shard from PostgreSQL, by key and in order."""

from collections.abc import Callable
from typing import Any, Final, LiteralString

from psycopg.types.numeric import Int8

from tenantq.store.change_batch import NUMBER
from tenantq.store.interface import Items
from tenantq.store.postgres.session import PostgresRows
from tenantq.store.postgres.statements import Statements

Execute = Callable[[LiteralString, dict[str, Any]], PostgresRows]
_FAMILY: Final = {name: bytes((number,)) for name, number in NUMBER.items()}


def stored_key(family: str, key: bytes) -> bytes:
    """Return the key of a row in the table: its family first."""
    return _FAMILY[family] + key


class PostgresRowReader:
    """Reads the rows of one shard; ``execute`` runs statements."""

    def __init__(self, execute: Execute, sql: Statements) -> None:
        self._execute, self._sql = execute, sql

    def get_many(self, family: str, keys: list[bytes]) -> list[bytes | None]:
        """Return the values of ``keys`` in order, None for each that is absent."""
        if not keys:
            return []
        wanted = [stored_key(family, key) for key in keys]
        found: dict[bytes, bytes] = dict(self._execute(self._sql["get_rows"], {"keys": wanted}))
        return [found.get(key) for key in wanted]

    def keys(self, family: str, lower: bytes, upper: bytes, limit: int) -> list[bytes]:
        """Return up to ``limit`` keys in [lower, upper), in order."""
        return [key[1:] for (key,) in self._scan("scan_keys", family, lower, upper, limit=Int8(limit))]

    def items(self, family: str, lower: bytes, upper: bytes, limit: int, bytes_max: int | None = None) -> Items:
        """Return up to ``limit`` rows in [lower, upper), in order; with ``bytes_max`` one row more than fills it, at most."""
        if bytes_max is None:
            return Items(
                (key[1:], value) for key, value in self._scan("scan_rows", family, lower, upper, limit=Int8(limit))
            )
        found = self._scan(
            "scan_sized_rows", family, lower, upper, limit=Int8(limit), bytes_max=Int8(max(1, bytes_max))
        )
        items = Items((key[1:], value) for key, value in found)
        items.cut = len(items) > 1 and sum(len(value) for _, value in items[:-1]) >= bytes_max
        return items

    def last_item(self, family: str, lower: bytes, upper: bytes) -> tuple[bytes, bytes] | None:
        """Return the greatest key in [lower, upper) with its value, or None."""
        found = self._scan("last_row", family, lower, upper)
        return (found[0][0][1:], found[0][1]) if found else None

    def _scan(self, statement: str, family: str, lower: bytes, upper: bytes, **others: Any) -> PostgresRows:
        if lower >= upper:
            return []
        bounds = {"lower": stored_key(family, lower), "upper": stored_key(family, upper)}
        return self._execute(self._sql[statement], bounds | others)
