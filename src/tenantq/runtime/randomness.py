"""Randomness for message ids, lease tokens and jitter. It is injected, so that tests can repeat it."""

import random
from typing import Protocol

from tenantq.errors import Invalid

_TAIL_BITS = 62
_STEP_BITS = 24


class Randomness(Protocol):
    """The part of ``random.Random`` that the engine uses."""

    def getrandbits(self, k: int, /) -> int:
        """Return ``k`` random bits."""

    def random(self) -> float:
        """Return a float in [0, 1)."""


def system_randomness() -> Randomness:
    """Return a generator seeded by the operating system."""
    return random.Random(int.from_bytes(random.SystemRandom().randbytes(32)))  # noqa: S311  # fencing tokens, not secrets


class MessageIds:
    """UUIDv7 ids that always increase, even if the clock stops or goes back.

    Inside one millisecond the last 62 bits count up in random steps.
    """

    __slots__ = ("_head", "_last_ms", "_randomness", "_tail", "last")

    def __init__(self, randomness: Randomness, last: bytes = b"") -> None:
        self._randomness = randomness
        self.last = last  # the greatest id issued
        self._last_ms = int.from_bytes(last[:6])
        number = int.from_bytes(last)
        self._tail = number & (1 << _TAIL_BITS) - 1
        self._head = number - self._tail

    def take(self, now_ms: int, count: int) -> list[bytes]:
        """Return ``count`` new ids in increasing order, with the time ``now_ms`` or the latest time used before."""
        bits = self._randomness.getrandbits
        if now_ms > self._last_ms:
            self._begin(now_ms)
        ids = []
        tail, head = self._tail, self._head
        for _ in range(count):
            tail += 1 + bits(_STEP_BITS)
            if tail >> _TAIL_BITS:
                self._begin(self._last_ms + 1)
                tail, head = self._tail, self._head
            ids.append((head | tail).to_bytes(16))
        self._tail = tail
        if ids:
            self.last = ids[-1]
        return ids

    def _begin(self, ms: int) -> None:
        self._last_ms = ms
        bits = self._randomness.getrandbits
        self._head = ms << 80 | 7 << 76 | bits(12) << 64 | 2 << 62
        self._tail = bits(_TAIL_BITS - 1)


def id_text(raw: bytes) -> str:
    """Return the usual text form of a message id."""
    return f"{raw[:4].hex()}-{raw[4:10].hex('-', 2)}-{raw[10:].hex()}"


def id_bytes(text: object) -> bytes:
    """Return the bytes of a message id. Raises Invalid if ``text`` is not one."""
    if isinstance(text, bytes) and len(text) == 16:
        return text
    if isinstance(text, str) and len(text) in (32, 36):
        try:
            raw = bytes.fromhex(text.replace("-", ""))
        except ValueError:
            raw = b""
        if len(raw) == 16:
            return raw
    raise Invalid("id: must be a message ID (a UUID such as 0192f0c1-2f6a-7cc3-98c4-dc0c0c07398f)")
