"""Ownership of a shard: a lease that commits and a thread renew, fenced by an epoch."""

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tenantq.errors import Invalid, StoreDamaged, StoreFailed, StoreLocked
from tenantq.store.interface import Beat
from tenantq.store.redis.link import Script, SlotLink

log = logging.getLogger("tenantq")

FORMAT: Final = b"2"
_CLAIM, _HOLD = Script("claim"), Script("hold")
_GIVE_UP_S: Final = 1.0
"""How long a closing store tries to give the shard up. After that the lease expires."""
_LOOK_S: Final = 1.0
"""Interval of checks of the server's settings."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Beat).decode


class ShardHeld(StoreLocked):
    """Another server owns this shard in the Redis store. Stop it, or wait until its lease expires."""

    def __init__(self, message: str, holder: str, left_ms: int) -> None:
        super().__init__(message)
        self.holder = holder
        self.left_ms = left_ms


class Ownership:
    """The claim of this process on one shard, and its heartbeats."""

    def __init__(self, link: SlotLink, state: bytes, lease_ms: int, patience_ms: int) -> None:
        """Claim the shard, or raise ShardHeld. ``link`` is for the thread and for syncs."""
        self._link, self._state = link, state
        self.lease_ms = lease_ms
        self._silence_s = max(lease_ms, patience_ms) / 1_000
        self._sent = time.monotonic()
        holder = f"{socket.gethostname()} process {os.getpid()}"
        word, id = secrets.token_hex(8), secrets.token_hex(8)
        found = link.run(
            _CLAIM, [state], [f"{holder} {word}".encode(), b"%d" % lease_ms, id.encode(), FORMAT, word.encode()]
        )  # fmt: skip
        if found[0] == b"held":
            name = found[1].decode(errors="replace").rpartition(" ")[0]
            raise ShardHeld(
                f"store {link.address}: this shard is owned by {name}. Stop that server, or wait: unless it is renewed, its lease"
                f" expires in {found[2]} ms.",
                name,
                int(found[2]),
            )
        _, self.epoch, commit, beat, known, _, age_ms = found
        self.commit = int(commit)
        # The newest beat, stored with the next commit, and when it was taken, if that is known.
        self._beat: tuple[bytes, float | None] = (beat, time.monotonic() - int(age_ms) / 1_000 if age_ms else None)
        self.id = known.decode()
        try:
            self.last: Beat | None = _decode(beat) if beat else None
        except msgspec.MsgspecError as error:
            self.give_up()
            raise StoreDamaged(f"store {link.address}: the shard's heartbeat is unreadable ({error})") from error
        self._ended = threading.Event()
        self._lost: Callable[[StoreFailed], None] | None = None
        self._failure: StoreFailed | None = None
        self._thread = threading.Thread(target=self._keep_renewing, name="tenantq-owner", daemon=True)
        self._thread.start()

    # ---- beats ----

    def beat(self, beat: Beat) -> None:
        """Store it with the next commit or renewal."""
        self.last = beat
        self._beat = (_encode(beat), time.monotonic())

    @property
    def since_last_ms(self) -> int | None:
        """The age of the last beat on the store's clock, which does not depend on the clock of its server; None: unknown."""
        taken = self._beat[1]
        return int((time.monotonic() - taken) * 1_000) if taken is not None else None

    def beat_arguments(self) -> tuple[bytes, bytes]:
        """Return the beat to store and its age in ms."""
        beat, taken = self._beat
        return beat, b"%d" % ((time.monotonic() - taken) * 1_000) if taken is not None else b""

    # ---- the lease ----

    def watch(self, lost: Callable[[StoreFailed], None]) -> None:
        """Call ``lost``, from any thread, when this process may not continue."""
        self._lost = lost
        if self._failure is not None:
            lost(self._failure)

    def fail(self, error: StoreFailed) -> None:
        """Report that this process may not continue. Safe from any thread."""
        if self._ended.is_set():
            return
        self._failure = error  # for a watcher that is registered at the same time
        if self._lost is not None:
            self._lost(error)

    def renewed(self, sent: float) -> None:
        """Note that a command sent at this time has renewed the lease."""
        self._sent = max(self._sent, sent)

    @property
    def may_have_ended(self) -> bool:
        """Whether another process may own the shard by now, by this process's own clock."""
        return time.monotonic() - self._sent >= self.lease_ms / 1_000

    def hold(self) -> None:
        """Renew the lease. Raises StoreFailed if another server owns the shard, or confirmed commits are lost."""
        sent = time.monotonic()
        self.check(self._link.run(_HOLD, [self._state], self._hold_arguments()))
        self.renewed(sent)

    def hold_and(self, *command: bytes | str | int) -> Any:
        """Renew the lease and return the reply to one more command on the same connection, which then covers that write."""
        sent = time.monotonic()
        held, answer = self._link.calls(
            [_HOLD.call([self._state], self._hold_arguments()), command], scripts=(_HOLD,), bound=True
        )
        self.check(held)
        self.renewed(sent)
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
        kind, more = answer[0], answer[1].decode(errors="replace")
        if kind == b"fenced":
            who = f"{more.rpartition(' ')[0]} owns this shard now" if more else "this shard has no owner"
            raise StoreFailed(
                f"store {self._link.address}: {who}: this server was silent for longer than its lease, or the store was"
                " emptied. Nothing of this round is confirmed."
            )
        if kind == b"other":
            raise StoreFailed(
                f"store {self._link.address}: commit {more} is not the one that was sent: the outcome of an earlier one was unknown."
                " Nothing of this round is confirmed. The next owner continues from the stored commit."
            )
        if kind == b"lost":
            raise StoreFailed(
                f"store {self._link.address}: the last commit is {more}, but {self.commit} was confirmed: a failover has lost"
                " commits that were not replicated. The next owner continues from the stored commit."
            )

    def _hold_arguments(self, lease_ms: int | None = None) -> list[bytes]:
        lease_ms = self.lease_ms if lease_ms is None else lease_ms
        beat, age_ms = self.beat_arguments()
        return [self.epoch, b"%d" % lease_ms, beat, b"%d" % self.commit, age_ms]

    def _keep_renewing(self) -> None:
        every_s, look = self.lease_ms / 3_000, time.monotonic() + _LOOK_S
        while not self._ended.wait(max(0.01, min(self._sent + every_s, look) - time.monotonic())):
            try:
                if time.monotonic() >= self._sent + every_s:
                    self.hold()
                if time.monotonic() >= look:
                    look = time.monotonic() + _LOOK_S
                    self._link.look_again()
            except Invalid as error:
                self.fail(StoreFailed(error.message))
                return
            except StoreFailed as error:
                silent_s = time.monotonic() - self._sent
                if (
                    error.__cause__ is None or silent_s >= self._silence_s
                ):  # the store has replied, or has been away for too long
                    self.fail(error)
                    return
            except Exception as error:  # without renewals another server would own the shard, unnoticed
                log.exception("the ownership of a shard cannot be renewed")
                self.fail(StoreFailed(f"store {self._link.address}: the ownership cannot be renewed ({error!r})."))
                return

    def give_up(self) -> None:
        """Give the shard up, so that another server can own it at once."""
        if hasattr(self, "_thread"):
            self._ended.set()
            self._thread.join(_GIVE_UP_S)
            if self._thread.is_alive():  # it waits for a store that does not respond
                self._link.close()
                return
        with contextlib.suppress(StoreFailed, Invalid):
            self._link.calls(
                [_HOLD.call([self._state], self._hold_arguments(0))], scripts=(_HOLD,), patience_s=_GIVE_UP_S
            )
