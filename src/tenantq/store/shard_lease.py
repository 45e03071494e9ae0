"""The lease of a shard in a remote store, as its owner sees it: renewed by commits and by a thread."""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from tenantq.errors import Invalid, StoreDamaged, StoreFailed, StoreLocked
from tenantq.store.interface import Beat

log = logging.getLogger("tenantq")

GIVE_UP_S: Final = 1.0
"""How long a closing store tries to give the shard up. After that the lease expires."""
LOOK_S: Final = 1.0
"""Interval of checks of the server's settings."""
CLAIM_S: Final = 0.04
"""Interval of claims while another server owns the shard and has not reported its release."""
_Owner = TypeVar("_Owner")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Beat).decode


class ShardHeld(StoreLocked):
    """Another server owns this shard. Stop it, or wait until its lease expires."""

    def __init__(self, address: object, holder: str, left_ms: int) -> None:
        super().__init__(
            f"store {address}: this shard is owned by {holder}. Stop that server, or wait: unless it is renewed, its lease"
            f" expires in {left_ms} ms."
        )
        self.holder = holder
        self.left_ms = left_ms


class Claimant(msgspec.Struct, frozen=True):
    """A process that claims a shard. A repeated claim has the same words, so that it is recognized."""

    name: str  # host and process
    word: str  # distinguishes two owners with the same epoch number
    new_id: str  # for a store that does not exist yet

    @classmethod
    def of_this_process(cls) -> "Claimant":
        """Return a new claimant."""
        return cls(f"{socket.gethostname()} process {os.getpid()}", secrets.token_hex(8), secrets.token_hex(8))


class ShardLease:
    """The lease of this process on one shard: its ``StoreOwnership``.

    It is also the ``SyncMarker``: it keeps the newest beat, which is stored with the next renewal.
    """

    def __init__(
        self, address: object, epoch: int, lease_ms: int, patience_ms: int, sent: float, beat: bytes, age_ms: int | None
    ) -> None:
        """Prepare, after a claim that was ``sent`` at that time and found this beat. Raises StoreDamaged."""
        self._address, self.epoch, self.lease_ms = address, epoch, lease_ms
        self._silence_s = max(lease_ms, patience_ms) / 1_000
        self._sent = sent
        # The newest beat, stored with the next commit, and when it was taken; None: unknown.
        taken = time.monotonic() - age_ms / 1_000 if age_ms is not None else None
        self._beat: tuple[bytes, float | None] = (beat, taken)
        self.last = read_beat(address, beat)
        self._ended = threading.Event()
        self._lost: Callable[[StoreFailed], None] | None = None
        self._failure: StoreFailed | None = None
        self._thread: threading.Thread | None = None

    # ---- beats ----

    def beat(self, beat: Beat) -> None:
        """Store it with the next commit or renewal."""
        self.last = beat
        self._beat = (_encode(beat), time.monotonic())

    @property
    def since_last_ms(self) -> int | None:
        """The age of the last beat on the store's clock, which does not depend on the clock of its server; None: unknown."""
        return self.beat_to_store()[1]

    def beat_to_store(self) -> tuple[bytes, int | None]:
        """Return the newest beat and its age in ms."""
        beat, taken = self._beat
        return beat, int((time.monotonic() - taken) * 1_000) if taken is not None else None

    # ---- the lease ----

    def watch(self, lost: Callable[[StoreFailed], None]) -> None:
        """Call ``lost``, from any thread, when this process may not continue."""
        self._lost = lost
        if self._failure is not None:
            lost(self._failure)

    @property
    def is_watched(self) -> bool:
        """Whether ``watch`` was called: the shard has loaded its state."""
        return self._lost is not None

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
    def is_doubtful(self) -> bool:
        """Whether another process may own the shard by now, by this process's own clock."""
        return time.monotonic() - self._sent >= self.lease_ms / 1_000

    def start(self, hold: Callable[[], None], look: Callable[[], None]) -> None:
        """Start the thread that calls ``hold`` to renew the lease, and ``look`` to check the server's settings."""
        self._thread = threading.Thread(
            target=self._keep_renewing, args=(hold, look), name="tenantq-owner", daemon=True
        )
        self._thread.start()

    def _keep_renewing(self, hold: Callable[[], None], look: Callable[[], None]) -> None:
        every_s, look_at = self.lease_ms / 3_000, time.monotonic() + LOOK_S
        while not self._ended.wait(max(0.01, min(self._sent + every_s, look_at) - time.monotonic())):
            try:
                if time.monotonic() >= self._sent + every_s:
                    hold()
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + LOOK_S
                    look()
            except Invalid as error:
                self.fail(StoreFailed(error.message))
                return
            except StoreFailed as error:
                silent_s = time.monotonic() - self._sent
                if error.__cause__ is None or silent_s >= self._silence_s:  # the store has replied, or is away too long
                    self.fail(error)
                    return
            except Exception as error:  # without renewals another server would own the shard, unnoticed
                log.exception("cannot renew the ownership of a shard")
                self.fail(StoreFailed(f"store {self._address}: cannot renew the ownership of this shard ({error!r})."))
                return

    def stop(self) -> bool:
        """End the thread. Return False if it still waits for a store that does not respond."""
        self._ended.set()
        if self._thread is None:
            return True
        self._thread.join(GIVE_UP_S)
        return not self._thread.is_alive()


def read_beat(address: object, beat: bytes) -> Beat | None:
    """Return a stored beat; None if there is none. Raises StoreDamaged."""
    try:
        return _decode(beat) if beat else None
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"store {address}: the shard's heartbeat is unreadable ({error})") from error


def fenced(address: object, holder: str) -> StoreFailed:
    """Return the failure of an owner whose epoch has ended."""
    who = f"{holder} owns this shard now" if holder else "this shard has no owner"
    return StoreFailed(
        f"store {address}: {who}: this server was silent for longer than its lease, or the store was emptied."
        " Nothing of this round is confirmed."
    )


def other_commit(address: object, stored: str) -> StoreFailed:
    """Return the failure of an owner whose commit number belongs to another batch."""
    return StoreFailed(
        f"store {address}: commit {stored} is not the one that was sent: the outcome of an earlier one was unknown."
        " Nothing of this round is confirmed. The next owner continues from the stored commit."
    )


def lost_commits(address: object, stored: str, confirmed: int) -> StoreFailed:
    """Return the failure of an owner whose confirmed commits are gone."""
    return StoreFailed(
        f"store {address}: the last commit is {stored}, but {confirmed} was confirmed: a failover has lost"
        " commits that were not replicated. The next owner continues from the stored commit."
    )


class ReleaseSignal:
    """Notifies the thread that waits for a shard when its last owner releases it to this process. Safe from any thread."""

    def __init__(
        self, on_wait: Callable[[], None] = lambda: None, is_assigned: Callable[[], bool] = lambda: True
    ) -> None:
        """Prepare. ``on_wait`` is called in the thread when it begins to wait: everything else is prepared then.

        ``is_assigned`` returns whether this process should own the shard. If not, a free shard may be another's to claim.
        """
        self._event = threading.Event()
        self._on_wait = on_wait
        self.is_assigned = is_assigned
        self.is_awaited = False

    def set(self) -> None:
        """End the wait."""
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the signal once. Return whether this process may claim the shard."""
        if not self.is_awaited:
            self.is_awaited = True
            self._on_wait()
        is_released = self._event.wait(timeout_s)
        self._event.clear()
        return is_released or self.is_assigned()


def claim_when_free(claim: Callable[[], _Owner], wait_ms: int, released: ReleaseSignal | None) -> _Owner:
    """Return what ``claim`` returns. Repeats it for ``wait_ms`` while it raises ShardHeld; ``released`` ends a pause.

    While the shard is assigned to another process, it is claimed only after the signal.
    """
    released = released or ReleaseSignal()
    ends = time.monotonic() + wait_ms / 1_000
    held: StoreLocked = StoreLocked("this shard is assigned to another server")
    may_claim = released.is_assigned()
    while True:
        pause_s = CLAIM_S
        if may_claim:
            try:
                return claim()
            except ShardHeld as error:
                held, pause_s = error, min(CLAIM_S, error.left_ms / 1_000)
        if time.monotonic() >= ends:
            raise held
        may_claim = released.wait(pause_s)
