"""The calling end of a connection between two shards: many questions at a time, each with its answer."""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from typing import TYPE_CHECKING, Final

from tenantq import errors
from tenantq.cluster.frames import (
    ASK,
    CHALLENGE,
    FAILED,
    HELLO,
    PART,
    PING,
    PONG,
    PROOF,
    PULL,
    REPLY,
    STOP,
    WELCOME,
    Frame,
    Wire,
)
from tenantq.cluster.handshake import CALLER, DOOR, is_nonce, is_proof, nonce, proof
from tenantq.errors import Limited, ShardDown, TenantqError, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

log = logging.getLogger("tenantq.shards")

AGAIN_S: Final = 0.1
"""So long after a link has broken it is made anew."""

QUESTIONS_MAX: Final = 20_000
"""Unanswered at a time on one link; one more is refused."""

BEATS_MISSED_MAX: Final = 3
"""So many times in a row, a second apart, nothing has come: the other shard stands still, and counts as one that does not run."""

_KINDS: Final = {
    kind.code: kind for kind in reversed(list(vars(errors).values())) if isinstance(kind, type) and issubclass(kind, TenantqError)
}  # fmt: skip


class Question:
    """One that was asked. Its ``answer`` is the payload; parts that follow it are pulled one by one."""

    __slots__ = ("_id", "_link", "_part", "answer", "has_parts")

    def __init__(self, link: Link, id: int, answer: asyncio.Future[bytes]) -> None:
        self._link = link
        self._id = id
        self._part: asyncio.Future[bytes | None] | None = None
        self.answer = answer
        self.has_parts = False

    def stop(self, *, is_gone: bool) -> None:
        """Have the other end wait no longer: it answers with what there is, or with ``is_gone`` nobody reads its answer."""
        self._link.tell(STOP, self._id, is_gone)
        if is_gone:
            self._link.forget(self._id)

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield what follows the answer; Unavailable where it breaks off."""
        try:
            while True:
                self._part = asyncio.get_running_loop().create_future()
                self._link.tell(PULL, self._id)
                part = await self._part
                if part is None:
                    return
                yield part
        finally:
            self.stop(is_gone=True)

    def take_part(self, part: bytes | None) -> None:
        """Hand over the next part."""
        if self._part is not None and not self._part.done():
            self._part.set_result(part)

    def fail(self, error: TenantqError) -> None:
        """End with an error, wherever it is."""
        for future in (self.answer, self._part):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # nobody may wait for it


class Link:
    """Asks one other shard. It is up once the other has said welcome, and made anew for as long as this one runs."""

    def __init__(
        self, number: int, port: int, hello: tuple[str, int], begun: Callable[[Link], Awaitable[None]]
    ) -> None:
        self.number = number  # of the other shard
        self.is_up = False
        self.is_ready = False  # as the other said last
        self._nonce = b""
        self._missed = 0
        self._port = port
        self._hello = hello
        self._begun = begun  # called when it is up
        self._ids = count(1)
        self._questions: dict[int, Question] = {}
        self._wire: Wire | None = None
        self._ended: asyncio.Event = asyncio.Event()
        self._welcome: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to call."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Call no more; whoever waits for an answer is told that there is none."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._wire is not None:
            self._wire.close()
            self._lost(self._wire)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._ended.clear()
            self._welcome.clear()
            try:
                _, wire = await loop.create_connection(lambda: Wire(self._take, self._lost), "127.0.0.1", self._port)
                self._wire = wire
                self._nonce = nonce()
                wire.send(HELLO, self._hello[1], self._nonce)
                await self._ended.wait()
            except OSError:
                log.debug("shard %d is out of reach", self.number)
            await asyncio.sleep(AGAIN_S)

    def beat(self, *, is_late: bool = False) -> bool:
        """Ask for a sign of life, to be called every second; True where the link has ended because there was none.

        ``is_late``: this shard itself stood still, so what has come may not have been looked at yet.
        """
        wire = self._wire
        if not self.is_up or wire is None:
            return False
        self._missed = 0 if wire.has_heard or is_late else self._missed + 1
        wire.has_heard = False
        if self._missed < BEATS_MISSED_MAX:
            wire.send(PING)
            return False
        log.warning("shard %d does not answer; it is taken for down until it does", self.number)
        wire.close()
        self._lost(wire)
        return True

    async def ask(self, kind: str, payload: bytes = b"", wait_ms: int | None = None) -> bytes:
        """Return the answer to a question; raise what the other shard raised, or ShardDown, also where it takes longer than ``wait_ms``."""
        question = self.begin(kind, payload)
        try:
            async with asyncio.timeout(wait_ms / 1_000 if wait_ms is not None else None):
                try:
                    return await question.answer
                except asyncio.CancelledError:
                    question.stop(is_gone=True)
                    raise
        except TimeoutError:
            raise ShardDown(f"shard {self.number} has not answered in time. Try again later.") from None

    def begin(self, kind: str, payload: bytes) -> Question:
        """Ask; the answer comes later."""
        if not self.is_up:
            raise shard_down(self.number)
        if len(self._questions) >= QUESTIONS_MAX or (self._wire is not None and self._wire.is_full):
            raise Unavailable(f"shard {self.number} has more to answer already than it can take. Try again later.")
        id = next(self._ids)
        question = self._questions[id] = Question(self, id, asyncio.get_running_loop().create_future())
        self.tell(ASK, id, kind, payload)
        return question

    def tell(self, *frame: object) -> None:
        """Send a frame, if the other is there."""
        if self._wire is not None:
            self._wire.send(*frame)

    def forget(self, id: int) -> None:
        """Wait for an answer no longer."""
        question = self._questions.pop(id, None)
        if question is not None:
            question.answer.cancel()

    def _greet(self, wire: Wire, frame: Frame) -> None:
        """Show who called, once the other end has shown that it is a shard of this server."""
        secret, number = self._hello
        match frame:
            case [kind, doors, given] if kind == CHALLENGE and is_nonce(doors):
                if is_proof(given, proof(secret, DOOR, number, self._nonce, doors)):
                    wire.is_known = True
                    wire.send(PROOF, proof(secret, CALLER, number, self._nonce, doors))
                    return
        log.warning("at the inner address of shard %d somebody answers who is no shard of this server", self.number)
        wire.close()

    def _take(self, wire: Wire, frame: Frame) -> None:
        if not wire.is_known:
            self._greet(wire, frame)
            return
        kind = frame[0]
        if kind == PONG:
            self.is_ready = frame[1]
            return
        if kind == WELCOME:
            self.is_up, self._missed = True, 0
            self.tell(PING)
            asyncio.get_running_loop().create_task(self._begin_link())  # its errors are its own
            return
        id = frame[1]
        question = self._questions.get(id)
        if question is None:
            return  # nobody waits for it any more
        if kind == PART:
            if frame[2] is None:
                del self._questions[id]
            question.take_part(frame[2])
            return
        question.has_parts = kind == REPLY and frame[3]
        if not question.has_parts:
            del self._questions[id]
        if kind == FAILED:
            question.fail(error_of(*frame[2:]))
        elif not question.answer.done():
            question.answer.set_result(frame[2])

    async def _begin_link(self) -> None:
        try:
            await self._begun(self)
        except TenantqError as error:
            log.debug("the link to shard %d broke at once: %s", self.number, error)

    def _lost(self, wire: Wire) -> None:
        if wire is not self._wire:
            return
        self._wire, self.is_up, self.is_ready = None, False, False
        questions, self._questions = self._questions, {}
        for question in questions.values():
            question.fail(shard_down(self.number))
        self._ended.set()


def shard_down(number: int) -> ShardDown:
    """Return what is told of work for a shard that does not run."""
    return ShardDown(
        f"shard {number} does not run just now; its tenants are served again when it is back. Try again later."
    )


def error_of(code: str, message: str, retry_after_ms: int = 0) -> TenantqError:
    """Return an error of another shard's as one of this: of the most general kind that has its code."""
    kind = _KINDS.get(code, TenantqError)
    error = kind(message)
    if isinstance(error, Limited | Unavailable):
        error.retry_after_ms = retry_after_ms
    return error
