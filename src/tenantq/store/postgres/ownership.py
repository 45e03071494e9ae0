"""Ownership of a shard in PostgreSQL: a lease that commits and a thread renew, fenced by an epoch."""

import contextlib
import time
from typing import Any, Final

from psycopg import errors
from psycopg.types.numeric import Int8

from tenantq.errors import Invalid, StoreFailed
from tenantq.store.postgres.session import BoundedConnection, PostgresRow, PostgresSession, fetch
from tenantq.store.postgres.statements import Statements
from tenantq.store.shard_lease import GIVE_UP_S, Claimant, ShardHeld, ShardLease, fenced, lost_commits, other_commit

_BUSY_S: Final = 0.05
"""Pause while another transaction has the shard's row."""


class ShardOwnership:
    """The claim of this process on one shard."""

    def __init__(
        self, commits: PostgresSession, keeper: PostgresSession, sql: Statements, lease_ms: int, patience_ms: int
    ) -> None:
        """Claim the shard on the session that commits, or raise ShardHeld. ``keeper`` renews the lease meanwhile."""
        self._commits, self._keeper, self._sql = commits, keeper, sql
        self._patience_ms = patience_ms
        who = Claimant.of_this_process()
        sent = time.monotonic()
        self.epoch, self.commit, beat, self.id, age_ms = commits.call(lambda one: self._claim(one, who, lease_ms))
        self.word = who.word
        self._confirmed = commits.connects  # the connection on which this ownership was seen
        try:
            self.lease = ShardLease(commits.address, self.epoch, lease_ms, patience_ms, sent, beat, age_ms)
        except StoreFailed:
            with contextlib.suppress(StoreFailed, Invalid):
                keeper.execute(sql["hold"], self._parameters(0, b"", None))
            raise
        self.lease.start(self.hold, keeper.look_again)

    def _claim(self, connection: BoundedConnection, who: Claimant, lease_ms: int) -> PostgresRow:
        parameters = {"id": who.new_id, "word": who.word, "holder": who.name, "lease_ms": Int8(lease_ms)}
        try:
            found = fetch(connection, self._sql["claim"], parameters)
        except errors.LockNotAvailable:
            fetch(connection, self._sql["end_silent_owner"], {"patience_ms": Int8(self._patience_ms)})
            raise
        if found:
            return found[0]
        fetch(connection, self._sql["shorten_lease"])
        (state,) = fetch(connection, self._sql["read_state"])
        raise ShardHeld(self._commits.address, state[3], state[7])

    def hold(self) -> None:
        """Renew the lease. Raises StoreFailed if another server owns the shard, or confirmed commits are lost."""
        self._hold(self._keeper)

    def confirm(self) -> None:
        """Raise StoreFailed after a read if another server may own the shard: the rows may be outdated.

        On a new connection, which may lead to another server, the ownership is checked in any case.
        """
        connects = self._commits.connects
        if self._confirmed == connects and not self.lease.is_doubtful:
            return
        ends = time.monotonic() + self._patience_ms / 1_000
        while not self._hold(self._commits):
            if time.monotonic() >= ends:
                error = TimeoutError("the shard's row is locked")
                raise StoreFailed(f"store {self._commits.address}: {error}.") from error
        self._confirmed = connects

    def _hold(self, session: PostgresSession) -> bool:
        """Renew the lease; return False if another transaction has the shard's row."""
        sent, commit = time.monotonic(), self.commit
        beat, age_ms = self.lease.beat_to_store()
        if session.execute(self._sql["hold"], self._parameters(self.lease.lease_ms, beat, age_ms)):
            self.lease.renewed(sent)
            return True
        self.check(session.execute(self._sql["read_state"]), commit)
        time.sleep(_BUSY_S)
        return False

    def check(self, state: list[PostgresRow], commit: int) -> None:
        """Raise StoreFailed unless the shard's row shows this owner, and ``commit`` exists."""
        address = self._commits.address
        if not state or (state[0][0], state[0][1]) != (self.epoch, self.word):
            raise fenced(address, state[0][3] if state else "")
        if state[0][2] < commit:
            raise lost_commits(address, str(state[0][2]), commit)

    def check_commit(self, state: list[PostgresRow]) -> None:
        """Raise why the shard's row does not accept the next commit."""
        self.check(state, self.commit)
        raise other_commit(self._commits.address, str(state[0][2]))

    def _parameters(self, lease_ms: int, beat: bytes, age_ms: int | None) -> dict[str, Any]:
        return {
            "epoch": Int8(self.epoch),
            "word": self.word,
            "commit": Int8(self.commit),
            "lease_ms": Int8(lease_ms),
            "beat": beat,
            "age_ms": Int8(age_ms) if age_ms is not None else None,
        }

    def give_up(self) -> None:
        """Give the shard up, so that another server can own it at once."""
        if not self.lease.stop():
            return
        parameters = self._parameters(0, *self.lease.beat_to_store())
        with contextlib.suppress(StoreFailed, Invalid):
            self._keeper.call(lambda one: fetch(one, self._sql["hold"], parameters), patience_s=GIVE_UP_S)
