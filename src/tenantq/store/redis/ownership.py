"""Ownership of a shard in Redis: a lease that commits and a thread renew, fenced by an epoch."""

import contextlib
import time
from typing import Any, Final

from tenantq.errors import Invalid, StoreFailed
from tenantq.store.redis.link import Script, SlotLink
from tenantq.store.shard_lease import GIVE_UP_S, Claimant, ShardHeld, ShardLease, fenced, lost_commits, other_commit

FORMAT: Final = b"2"
_CLAIM, _HOLD = Script("claim"), Script("hold")


class Ownership:
    """The claim of this process on one shard."""

    def __init__(self, link: SlotLink, state: bytes, lease_ms: int, patience_ms: int) -> None:
        """Claim the shard, or raise ShardHeld. ``link`` is for the thread and for syncs."""
        self._link, self._state = link, state
        sent = time.monotonic()
        who = Claimant.of_this_process()
        holder = f"{who.name} {who.word}".encode()
        found = link.run(_CLAIM, [state], [holder, b"%d" % lease_ms, who.new_id.encode(), FORMAT, who.word.encode()])
        if found[0] == b"held":
            raise ShardHeld(link.address, _name(found[1]), int(found[2]))
        _, self.epoch, commit, beat, known, _, age_ms = found
        self.commit = int(commit)
        self.id = known.decode()
        try:
            number, age = int(self.epoch.partition(b":")[0]), int(age_ms) if age_ms else None
            self.lease = ShardLease(link.address, number, lease_ms, patience_ms, sent, beat, age)
        except StoreFailed:
            with contextlib.suppress(StoreFailed, Invalid):
                link.run(_HOLD, [state], [self.epoch, b"0", b"", commit, b""])
            raise
        self.lease.start(self.hold, link.look_again)

    def beat_arguments(self) -> tuple[bytes, bytes]:
        """Return the beat to store and its age in ms."""
        beat, age_ms = self.lease.beat_to_store()
        return beat, b"%d" % age_ms if age_ms is not None else b""

    def hold(self) -> None:
        """Renew the lease. Raises StoreFailed if another server owns the shard, or confirmed commits are lost."""
        sent = time.monotonic()
        self.check(self._link.run(_HOLD, [self._state], self._hold_arguments()))
        self.lease.renewed(sent)

    def hold_and(self, *command: bytes | str | int) -> Any:
        """Renew the lease and return the reply to one more command on the same connection, which then covers that write."""
        sent = time.monotonic()
        held, answer = self._link.calls(
            [_HOLD.call([self._state], self._hold_arguments()), command], scripts=(_HOLD,), bound=True
        )
        self.check(held)
        self.lease.renewed(sent)
        return answer

    @property
    def longest_wait_ms(self) -> int:
        """How long a command of ``hold_and`` may take. A connection that is silent for longer counts as dead."""
        return int(self._link.answer_s * 500)

    def check_seen(self, state: list[bytes | None], commit: int) -> None:
        """Raise StoreFailed unless epoch, commit and holder, read after rows, show this owner, and ``commit`` exists."""
        epoch, last, holder = state
        if epoch != self.epoch:
            self.check([b"fenced", holder or b""])
        elif int(last or 0) < commit:
            self.check([b"lost", last or b"0"])

    def check(self, answer: list[bytes]) -> None:
        """Raise StoreFailed if a reply says that this process may not continue."""
        kind, more = answer[0], answer[1]
        if kind == b"fenced":
            raise fenced(self._link.address, _name(more))
        if kind == b"other":
            raise other_commit(self._link.address, more.decode(errors="replace"))
        if kind == b"lost":
            raise lost_commits(self._link.address, more.decode(errors="replace"), self.commit)

    def _hold_arguments(self, lease_ms: int | None = None) -> list[bytes]:
        lease_ms = self.lease.lease_ms if lease_ms is None else lease_ms
        beat, age_ms = self.beat_arguments()
        return [self.epoch, b"%d" % lease_ms, beat, b"%d" % self.commit, age_ms]

    def give_up(self) -> None:
        """Give the shard up, so that another server can own it at once."""
        if not self.lease.stop():
            self._link.close()
            return
        with contextlib.suppress(StoreFailed, Invalid):
            self._link.calls(
                [_HOLD.call([self._state], self._hold_arguments(0))], scripts=(_HOLD,), patience_s=GIVE_UP_S
            )


def _name(holder: bytes) -> str:
    """Return the name of a holder without its random word."""
    return holder.decode(errors="replace").rpartition(" ")[0]
