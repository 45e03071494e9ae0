"""The lines a crash worker writes: what it is about to do, and the replies it got, one short line each.

Each line is one ``os.write``, so a SIGKILL loses no earlier line. Fields are separated by spaces, ``-`` means none,
and times are in milliseconds of the shard clock.
"""

from __future__ import annotations

import os
import zlib
from typing import Final

OPENED: Final = "O"  # time, the machine's monotonic time, last journal seq
ADD: Final = "A"  # token, tenant, queue, key, group, ttl_ms, delay_ms, max_attempts
ADDED: Final = "a"  # token, id, duplicate
REFUSED: Final = "x"  # token, error code
DELIVERED: Final = "D"  # token, id, receipt, attempt, tenant, queue, lease start, lease end, group
SETTLE: Final = "S"  # verb, token, receipt, argument in ms
SETTLED: Final = "s"  # verb, token, receipt, "ok" or error code, new lease end
REMOVE: Final = "R"  # token, id
REMOVED: Final = "r"  # token, id, "ok" or error code
SIZES: Final = "W"  # "before" or "after" a sync, then name:bytes of every log file
CRASH: Final = "K"  # the named point at which the worker kills itself
FAILED: Final = "F"  # error class, text
TORN: Final = "V"  # a delivered body that is damaged
DONE: Final = "Z"  # closed cleanly

POINTS: Final = ("before_write", "after_write", "before_sync", "after_sync", "before_reply")


def emit(*fields: object) -> None:
    """Write one event."""
    os.write(1, (" ".join("-" if field is None or field == "" else str(field) for field in fields) + "\n").encode())


def body_of(token: str, size: int = 0) -> bytes:
    """Return the body for ``token``. It reveals any missing or changed byte."""
    head = token.encode()
    if size <= 0:
        size = 24 + zlib.crc32(head) % 300
    checksum = f"{zlib.crc32(head):08x}".encode()
    return head + b"|" + (checksum * (size // 8 + 1))[:size] + b"|"


def token_of(body: bytes) -> str | None:
    """Return the token of a body, or None if the body is torn."""
    head, found, rest = body.partition(b"|")
    if not found or body != body_of(head.decode(errors="replace"), len(rest) - 1):
        return None
    return head.decode()
