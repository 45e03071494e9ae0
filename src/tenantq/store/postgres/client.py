"""What all shards of a process share: the session that renews their leases, a limit on snapshots, and whether space is short."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from tenantq.errors import Unavailable
from tenantq.store.postgres.address import PostgresAddress
from tenantq.store.postgres.server_check import PostgresCheck, SessionLimits
from tenantq.store.postgres.session import PostgresSession
from tenantq.store.postgres.settings import PostgresSettings

SNAPSHOTS_MAX: Final = 32
"""Most open snapshots of a process: each has a connection."""
_SILENCE_S_MIN: Final = 0.1
_FULL_S: Final = 10.0
"""How long adds are refused after the server reported a full disk."""


class PostgresClient:
    """The use of one PostgreSQL store by one process."""

    def __init__(
        self, address: PostgresAddress, settings: PostgresSettings, durability: Literal["fsync", "os"] = "fsync"
    ) -> None:
        """Prepare; the first use connects."""
        self.address, self.settings, self.durability = address, settings, durability
        self.check = PostgresCheck(address, settings, durability)
        silence_s = max(_SILENCE_S_MIN, settings.lease_ms / 6_000)  # a dead connection must not cost the leases
        # Renewals need not be on disk: after a crash of the server, owners find out at their next statement.
        limits = SessionLimits(settings.lease_ms, settings.lease_ms // 6, commits_durably=False)
        self.keeper = PostgresSession(
            address, self.check, self._name("leases"), limits, settings.patience_ms, silence_s
        )
        self._lock = threading.Lock()
        self._shards = 0
        self._snapshots = threading.Semaphore(SNAPSHOTS_MAX)
        self._full_until = 0.0

    @contextmanager
    def open_shard(self) -> Iterator[None]:
        """Count an open shard inside the block. After the last one no lease needs a connection."""
        with self._lock:
            self._shards += 1
        try:
            yield
        finally:
            with self._lock:
                self._shards -= 1
                is_last = not self._shards
            if is_last:
                self.keeper.disconnect()

    def session(
        self, use: str, limits: SessionLimits | None = None, *, patience_ms: int | None = None
    ) -> PostgresSession:
        """Return a new session for a use that operators see in pg_stat_activity."""
        patience_ms = self.settings.patience_ms if patience_ms is None else patience_ms
        limits = limits or SessionLimits(patience_ms * 3 // 4, max(50, patience_ms // 4))  # the server gives up first
        return PostgresSession(self.address, self.check, self._name(use), limits, patience_ms)

    def _name(self, use: str) -> str:
        return f"tenantq {self.settings.name} {use}"[:63]

    # ---- snapshots ----

    @contextmanager
    def open_snapshot(self) -> Iterator[None]:
        """Count an open snapshot inside the block. Raises Unavailable if too many are open."""
        if not self._snapshots.acquire(blocking=False):
            raise Unavailable(f"{SNAPSHOTS_MAX} snapshots are open on this server. Close one, or try again later.")
        try:
            yield
        finally:
            self._snapshots.release()

    # ---- space ----

    def note_full(self) -> None:
        """Note that the server's disk is full."""
        self._full_until = time.monotonic() + _FULL_S

    @property
    def is_full(self) -> bool:
        """Whether the server's disk was full recently."""
        return time.monotonic() < self._full_until
