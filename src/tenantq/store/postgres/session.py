"""A session with PostgreSQL, with retries.

Every piece of work can be done twice: reads change nothing, and a repeated commit or claim is recognized. So every kind of
failure (a reset, a timeout, a server that restarts, a failover) is handled the same way: connect and try again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready

from tenantq.errors import DiskFull, StoreFailed, StoreFormat
from tenantq.runtime.backoff import Backoff
from tenantq.runtime.histogram import Histogram
from tenantq.store.postgres.address import PostgresAddress
from tenantq.store.postgres.server_check import PostgresCheck, ReadOnlyServer, SessionLimits

if TYPE_CHECKING:
    from psycopg import Cursor
    from psycopg.abc import PQGen
    from psycopg.errors import Diagnostic

T = TypeVar("T")
PostgresRow = tuple[Any, ...]
PostgresRows = list[PostgresRow]
log = logging.getLogger("tenantq")

_BACKOFF: Final = Backoff(20, 200)
_CONNECT_S: Final = 2
_TRANSIENT_CLASSES: Final = frozenset(("08", "40", "53", "57", "25"))
"""Classes of errors that a retry may resolve: connection, rollback, resources, operator, transaction state."""
_LOCK_NOT_AVAILABLE: Final = "55P03"
_DISK_FULL: Final = "53100"
_MISSING: Final = frozenset(("42P01", "3F000"))  # a table, a schema
_REFUSALS: Final = (
    ("password authentication failed", "access denied. Check user and password."),
    ("no password supplied", "access denied: the server requires a password. Add it to the URL."),
    ("no pg_hba.conf entry", "access denied: the server does not accept this user from this host. See pg_hba.conf."),
    ("role ", "access denied: the user does not exist."),
    ("database ", "the database does not exist. Create it with ENCODING 'UTF8'."),
    ("certificate", "the server's certificate is not valid."),
)
"""Connection errors that a retry cannot resolve, by a part of their text: libpq gives them no code."""
_DOES_NOT_EXIST: Final = "does not exist"


class NotConfirmed(Exception):
    """The server finished a commit with a warning, such as that no standby has confirmed it. It must be sent again."""


class Silent(psycopg.OperationalError):
    """The server did not answer in time."""


class BoundedConnection(psycopg.Connection[PostgresRow]):
    """A connection that raises Silent if the server is silent for ``answer_s``."""

    answer_s = 5.0

    @contextlib.contextmanager
    def patiently(self, answer_s: float) -> Generator[None, None, None]:
        """Wait longer for the answers to some statements. If they fail, the connection is closed anyway."""
        usual_s, self.answer_s = self.answer_s, max(self.answer_s, answer_s)
        yield
        self.answer_s = usual_s

    def wait(self, gen: PQGen[T], interval: float = 0.0, timeout: float | None = None) -> T:
        """Run an operation of the library to its end."""
        return super().wait(self._bounded(gen), interval or self.answer_s, timeout)

    def _bounded(self, gen: PQGen[T]) -> Generator[Any, Any, T]:
        ends = time.monotonic() + self.answer_s
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready == Ready.NONE and time.monotonic() >= ends:
                    raise Silent(f"no answer for {self.answer_s:.1f} s")
                wanted = gen.send(ready)
        except StopIteration as ended:
            result: T = ended.value
            return result


class PostgresSession:
    """One connection. Other threads wait while one uses it."""

    def __init__(
        self,
        address: PostgresAddress,
        check: PostgresCheck,
        name: str,
        limits: SessionLimits,
        patience_ms: int,
        answer_s: float | None = None,
    ) -> None:
        """Prepare a session that operators see by ``name``; the first call connects.

        A connection without an answer for ``answer_s``, by default the patience, counts as dead.
        """
        self.address = address
        self._check, self._name, self._limits = check, name, limits
        self._patience_s = patience_ms / 1_000
        self._answer_s = answer_s or self._patience_s
        self._lock = threading.RLock()
        self._connection: BoundedConnection | None = None
        self._warnings: list[str] = []
        self._closing = False
        self.took = Histogram()  # answered calls, with retries
        self.retries = 0
        self.connects = 0

    def close(self) -> None:
        """Close the connection. Calls that wait for an answer fail."""
        self._closing = True
        waiting = self._connection
        if waiting is not None:
            with contextlib.suppress(OSError, psycopg.Error):
                shut = socket.socket(fileno=os.dup(waiting.fileno()))
                shut.shutdown(socket.SHUT_RDWR)
                shut.close()
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connection once no call uses it. The next call connects again."""
        with self._lock:
            self._disconnect()

    def look_again(self) -> None:
        """Check the server again. Raises what the check raises."""
        with self._lock:
            if self._connection is None:
                return  # a new connection is checked anyway
            try:
                self._check.look(self._connection)
            except (psycopg.Error, ReadOnlyServer):
                self._disconnect()

    def execute(self, statement: LiteralString, parameters: dict[str, Any] | None = None) -> PostgresRows:
        """Run one statement, which is a transaction of its own, and return its rows."""
        return self.call(lambda connection: fetch(connection, statement, parameters))

    def call(
        self,
        work: Callable[[BoundedConnection], T],
        *,
        patience_s: float | None = None,
        stays_open: bool = False,
        takes_long: bool = False,
    ) -> T:
        """Return what ``work`` returns, once everything that it wrote is confirmed. It may run more than once.

        With ``stays_open`` it leaves a transaction open. If it ``takes_long``, the patience begins with the first failure.

        Raises StoreFailed: with a cause if the store did not answer within the patience, else without.
        """
        started = time.monotonic()
        patience_s = self._patience_s if patience_s is None else patience_s
        ends = started + patience_s
        tries = 0
        with self._lock:
            while True:
                try:
                    found = self._attempt(work, stays_open=stays_open)
                except (psycopg.Error, ReadOnlyServer, NotConfirmed) as raised:
                    error = _first(raised)
                    self._disconnect()
                    self._check_transient(error)
                    if not tries:
                        log.warning("the store does not respond: %s", _shown(error), extra={"store": str(self.address)})
                        ends = time.monotonic() + patience_s if takes_long else ends
                    tries += 1
                    self.retries += 1
                    self._pause(error, tries, started, ends)
                except BaseException:
                    self._disconnect()  # an unread answer would be taken for the next one
                    raise
                else:
                    if tries:
                        log.info("the store responds again", extra={"store": str(self.address), "tries": tries + 1})
                    self.took.count(int((time.monotonic() - started) * 1_000_000))
                    return found

    def _attempt(self, work: Callable[[BoundedConnection], T], *, stays_open: bool) -> T:
        connection = self._connected()
        self._warnings.clear()
        found = work(connection)
        expected = TransactionStatus.INTRANS if stays_open else TransactionStatus.IDLE
        if connection.info.transaction_status != expected:  # the last answer is not complete
            raise psycopg.OperationalError("the connection was lost")
        if self._warnings:
            raise NotConfirmed(self._warnings[0])
        return found

    def _pause(self, error: Exception, tries: int, started: float, ends: float) -> None:
        pause_s = _BACKOFF.half_jitter_ms(tries, random) / 1_000
        now = time.monotonic()
        if now + pause_s >= ends or self._closing:
            raise StoreFailed(
                f"store {self.address}: {_shown(error)} (retried for {now - started:.1f} s)."
                " Nothing of this round is confirmed."
            ) from error
        time.sleep(pause_s)

    def _check_transient(self, error: Exception) -> None:
        """Raise StoreFailed if a retry cannot help."""
        if not isinstance(error, psycopg.Error):
            return
        state, text = error.sqlstate, _shown(error)
        if state == _DISK_FULL:
            raise DiskFull(f"store {self.address}: {text}. Nothing of this round is confirmed. Free some space.")
        if state is None and isinstance(error, psycopg.OperationalError):  # of connecting, or a lost connection
            for part, meaning in _REFUSALS:
                if part in text and (not part.endswith(" ") or _DOES_NOT_EXIST in text):
                    raise StoreFailed(f"store {self.address}: {meaning} ({text})")
            return
        if state is not None and (state[:2] in _TRANSIENT_CLASSES or state == _LOCK_NOT_AVAILABLE):
            return
        if state in _MISSING:
            raise StoreFormat(f"store {self.address}: tables are gone. The store was emptied or replaced ({text}).")
        raise StoreFailed(f"store {self.address}: {text}. Nothing of this round is confirmed.")

    # ---- the connection ----

    def _connected(self) -> BoundedConnection:
        if self._connection is not None:
            return self._connection
        if self._closing:
            raise psycopg.OperationalError("the session is closed")
        self.connects += 1
        connection = BoundedConnection.connect(
            make_conninfo(**self.address.connection()),
            autocommit=True,
            prepare_threshold=0,
            prepared_max=None,
            application_name=self._name,
            client_encoding="UTF8",
            connect_timeout=_CONNECT_S,
            target_session_attrs="read-write" if len(self.address.hosts) > 1 else "any",
            keepalives_idle=_CONNECT_S,
            keepalives_interval=_CONNECT_S,
            keepalives_count=3,
            tcp_user_timeout=max(1_000, int(self._answer_s * 1_000)),
        )
        connection.answer_s = self._answer_s
        connection.add_notice_handler(self._notice)
        self._connection = connection
        self._check.set_up(connection, self._limits)
        return connection

    def _notice(self, notice: Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "a warning")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                connection.close()


def fetch(
    connection: psycopg.Connection[PostgresRow], statement: LiteralString, parameters: dict[str, Any] | None = None
) -> PostgresRows:
    """Run a statement and return its rows; none if it returns nothing."""
    cursor: Cursor[PostgresRow] = connection.execute(statement, parameters, binary=True)
    return cursor.fetchall() if cursor.description is not None else []


def _first(error: Exception) -> Exception:
    """Return what went wrong first. A pipeline that fails may raise another error when it ends."""
    while isinstance(error.__context__, psycopg.Error):
        error = error.__context__
    return error


def _shown(error: Exception) -> str:
    """Return the text of an error in one line."""
    return " ".join(str(error).split()).removesuffix(".")
