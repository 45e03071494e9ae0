"""Who owns a shard: one server at a time, by a lease that its commits and a thread renew, fenced by an epoch."""

from __future__ import annotations

import contextlib
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

FORMAT: Final = b"1"
_CLAIM, _HOLD = Script("claim"), Script("hold")
_GIVE_UP_S: Final = 1.0
"""How long a closing store tries to give the shard up; else the lease ends by itself."""
_LOOK_S: Final = 1.0
"""How often the server's settings are looked at."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Beat).decode


class ShardHeld(StoreLocked):
    """Another server owns this shard in the Redis store. Stop it, or wait until its lease has ended."""

    def __init__(self, message: str, holder: str, left_ms: int) -> None:
        super().__init__(message)
        self.holder = holder
        self.left_ms = left_ms


class Ownership:
    """The claim of this process on one shard, and the beats that go with it."""

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
                f"store {link.address}: this shard is owned by {name}; stop that server, or wait: its lease ends in"
                f" {found[2]} ms unless it goes on",
                name,
                int(found[2]),
            )
        _, self.epoch, commit, beat, known, format = found
        self.commit = int(commit)
        self.pending: bytes = beat  # the newest beat: it goes with the next commit
        self.id = known.decode()
        self.format: bytes = format
        try:
            self.last: Beat | None = _decode(beat) if beat else None
        except msgspec.MsgspecError as error:
            self.give_up()
            raise StoreDamaged(f"store {link.address}: the shard's beat is unreadable ({error})") from error
        self._ended = threading.Event()
        self._lost: Callable[[StoreFailed], None] | None = None
        self._failure: StoreFailed | None = None
        self._thread = threading.Thread(target=self._go_on_owning, name="tenantq-owner", daemon=True)
        self._thread.start()

    # ---- beats ----

    def beat(self, beat: Beat) -> None:
        """Have it stored with the next commit, or the next sign of life."""
        self.last = beat
        self.pending = _encode(beat)

    # ---- the lease ----

    def watch(self, lost: Callable[[StoreFailed], None]) -> None:
        """Have ``lost`` called, from any thread, when this process may not go on."""
        self._lost = lost
        if self._failure is not None:
            lost(self._failure)

    def fail(self, error: StoreFailed) -> None:
        """Tell whoever watches that this process may not go on; from any thread."""
        if self._ended.is_set():
            return
        self._failure = error  # for whoever begins to watch at this moment
        if self._lost is not None:
            self._lost(error)

    def renewed(self, sent: float) -> None:
        """Note that the lease was renewed by something that was sent then."""
        self._sent = max(self._sent, sent)

    @property
    def may_have_ended(self) -> bool:
        """Whether somebody else may own the shard by now, as far as this process's own clock can tell."""
        return time.monotonic() - self._sent >= self.lease_ms / 1_000

    def hold(self) -> None:
        """Renew the lease, or raise StoreFailed because another server owns the shard or what was confirmed is gone."""
        sent = time.monotonic()
        self.check(self._link.run(_HOLD, [self._state], self._hold_arguments()))
        self.renewed(sent)

    def hold_and(self, *command: bytes | str | int) -> Any:
        """Renew the lease and have the same connection answer one more command, which then speaks of that write."""
        sent = time.monotonic()
        held, answer = self._link.calls(
            [_HOLD.call([self._state], self._hold_arguments()), command], scripts=(_HOLD,), bound=True
        )
        self.check(held)
        self.renewed(sent)
        return answer

    @property
    def longest_wait_ms(self) -> int:
        """How long a command of ``hold_and`` may take: a connection that is silent for longer counts as dead."""
        return int(self._link.answer_s * 500)

    def check_seen(self, state: list[bytes | None], commit: int) -> None:
        """Raise StoreFailed unless epoch, commit and holder, read after rows, are of this owner, and ``commit`` is there."""
        epoch, last, holder = state
        if epoch != self.epoch:
            self.check([b"fenced", holder or b""])
        elif int(last or 0) < commit:
            self.check([b"lost", last or b"0"])

    def check(self, answer: list[bytes]) -> None:
        """Raise StoreFailed if an answer says that this process may not go on."""
        kind, more = answer[0], answer[1].decode(errors="replace")
        if kind == b"fenced":
            who = f"{more.rpartition(' ')[0]} owns" if more else "nobody owns"
            raise StoreFailed(
                f"store {self._link.address}: {who} this shard by now: this server was silent for longer than its lease, or"
                " the store was emptied; nothing of this round is confirmed"
            )
        if kind == b"other":
            raise StoreFailed(
                f"store {self._link.address}: commit {more} there is another than the one that was sent: what became of one"
                " before it was never learnt; nothing of this round is confirmed. Start again to go on from what is there"
            )
        if kind == b"lost":
            raise StoreFailed(
                f"store {self._link.address}: commit {more} is the last one there, but {self.commit} was confirmed by the"
                " server that was primary then: a failover has lost what it had not replicated. Start again to go on from"
                " what is there"
            )

    def _hold_arguments(self, lease_ms: int | None = None) -> list[bytes]:
        lease_ms = self.lease_ms if lease_ms is None else lease_ms
        return [self.epoch, b"%d" % lease_ms, self.pending, b"%d" % self.commit]

    def _go_on_owning(self) -> None:
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
                if error.__cause__ is None or silent_s >= self._silence_s:  # it was answered, or has been away for long
                    self.fail(error)
                    return

    def give_up(self) -> None:
        """Let another server own the shard at once."""
        if hasattr(self, "_thread"):
            self._ended.set()
            self._thread.join(_GIVE_UP_S)
            if self._thread.is_alive():  # it waits for a store that does not answer
                self._link.close()
                return
        with contextlib.suppress(StoreFailed, Invalid):
            self._link.calls(
                [_HOLD.call([self._state], self._hold_arguments(0))], scripts=(_HOLD,), patience_s=_GIVE_UP_S
            )
