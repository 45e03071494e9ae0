"""The check of a PostgreSQL server, before it is used and regularly afterwards."""

from typing import Final, Literal, NamedTuple

from psycopg import Connection

from tenantq.errors import Invalid, StoreFailed
from tenantq.store.postgres.address import PostgresAddress
from tenantq.store.postgres.settings import PostgresSettings
from tenantq.store.postgres.statements import Statements

OLDEST: Final = 14
_KEEPALIVE_S: Final = 2


class ReadOnlyServer(Exception):
    """The server is a standby or read-only. Another one may be the primary soon."""


class SessionLimits(NamedTuple):
    """How long the statements of a session may take, in ms; 0: any time."""

    statement_ms: int
    lock_ms: int
    idle_ms: int = 10_000
    commits_durably: bool = True


class PostgresCheck:
    """Sets up sessions, and checks that what the server confirms is as durable as the settings ask for."""

    def __init__(
        self, address: PostgresAddress, settings: PostgresSettings, durability: Literal["fsync", "os"]
    ) -> None:
        self._address, self._settings, self._durability = address, settings, durability
        self._sql = Statements(settings.name)
        self.in_use = False  # once the store is open, its settings are valid: a later problem is a failure of the store

    def set_up(self, connection: Connection, limits: SessionLimits) -> None:
        """Set a new session up. Raises ReadOnlyServer; otherwise Invalid, or StoreFailed once the store is in use."""
        durably = self._durability == "fsync" and limits.commits_durably
        row = connection.execute(
            self._sql["set_up"],
            {
                "statement_ms": str(limits.statement_ms),
                "lock_ms": str(limits.lock_ms),
                "idle_ms": str(limits.idle_ms),
                "synchronous_commit": self._settings.synchronous_commit if durably else "off",
                "keepalive_s": str(_KEEPALIVE_S),
            },
            prepare=False,
        ).fetchone()
        assert row is not None
        version, encoding, fsync, is_read_only = row[:4]
        if version // 10_000 < OLDEST:
            raise self._refusal(f"unsupported PostgreSQL version ({version // 10_000}). Use {OLDEST} or later.")
        if encoding != "UTF8":
            raise self._refusal(f"the database has the encoding {encoding}. Create it with ENCODING 'UTF8'.")
        self._check(fsync, is_read_only)

    def look(self, connection: Connection) -> None:
        """Check the server of a session again, because its settings may have changed. Raises as ``set_up``."""
        row = connection.execute(self._sql["look"]).fetchone()
        assert row is not None
        self._check(*row)

    def _check(self, fsync: str, is_read_only: object) -> None:
        if is_read_only:
            raise ReadOnlyServer("the server is a standby or read-only, not the primary")
        if fsync == "off" and self._durability == "fsync":
            raise self._refusal(
                'fsync is off, so confirmed writes may not be on disk. Set fsync = on, or set durability = "os".'
            )

    def _refusal(self, text: str) -> Invalid | StoreFailed:
        return (StoreFailed if self.in_use else Invalid)(f"store {self._address}: {text}")
