"""Request IDs in replies, in the journal and in the log: the client's own, or generated ones."""

import itertools
import re
from typing import Final

from tenantq.runtime.randomness import Randomness, system_randomness

_REQUEST_ID_CHARS_MAX: Final = 128
_USER_AGENT_CHARS_MAX: Final = 256
_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_TRACEPARENT_CHARS: Final = 55


class RequestIds:
    """Generates IDs for requests without one. IDs of different listeners and runs do not collide."""

    def __init__(self, randomness: Randomness | None = None) -> None:
        self._start = f"{(randomness or system_randomness()).getrandbits(40):010x}-"
        self._count = itertools.count(1)

    def next(self) -> str:
        """Return a new ID."""
        return f"{self._start}{next(self._count):x}"


def request_id_of(raw: bytes) -> str | None:
    """Return the client's request ID if it is valid."""
    if 1 <= len(raw) <= _REQUEST_ID_CHARS_MAX and raw.isascii():
        text = raw.decode("ascii")
        if text.isprintable() and " " not in text:
            return text
    return None


def traceparent_of(raw: bytes) -> str:
    """Return a W3C ``traceparent`` header without extensions; empty if it is not valid."""
    return raw[:_TRACEPARENT_CHARS].decode() if _TRACEPARENT.fullmatch(raw) is not None else ""


def user_agent_of(raw: bytes) -> str:
    """Return the client's user agent, shortened to its limit."""
    return raw[:_USER_AGENT_CHARS_MAX].decode("latin-1")
