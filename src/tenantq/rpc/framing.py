"""Framing of messages in a stream: a table of segment lengths, then the segments.

It is checked before the library sees a message: a client that claims a huge message must not cause an allocation.
"""

import struct
from typing import Final

from tenantq.errors import Invalid, TooLarge

WORD: Final = 8
_FIRST: Final = struct.Struct("<II")
_BOOTSTRAP: Final = 8
"""The place of ``bootstrap`` among the kinds of message in Cap'n Proto's rpc.capnp."""


class Frame:
    """The size of one message, from its table."""

    __slots__ = ("head_bytes", "size")

    def __init__(self, head_bytes: int, size: int) -> None:
        self.head_bytes = head_bytes  # of the table
        self.size = size  # of the whole message with its table


def read_frame(data: bytes | bytearray, segments_max: int, bytes_max: int) -> Frame | None:
    """Return the frame that ``data`` starts with, None while its table is incomplete; raise if it exceeds a limit."""
    if len(data) < WORD:
        return None
    count, first = _FIRST.unpack_from(data)
    if count == 0:
        head, words = WORD, first
    else:
        count += 1
        if count > segments_max:
            raise Invalid(f"this is not Cap'n Proto, or a message of more than {segments_max} segments")
        head = (4 * (count + 1) + 7) & ~7
        if len(data) < head:
            return None
        words = sum(struct.unpack_from(f"<{count}I", data, 4))
    size = head + WORD * words
    if size > bytes_max:
        raise TooLarge(f"the message is too large (allowed: {bytes_max} bytes), or this is not Cap'n Proto")
    return Frame(head, size)


def is_bootstrap(data: bytes | bytearray, frame: Frame) -> bool:
    """Return whether a message requests the bootstrap capability, as far as ``data`` shows."""
    at = frame.head_bytes
    if len(data) < at + 2 * WORD:
        return False
    pointer = int.from_bytes(data[at : at + 4], "little")
    at += WORD + WORD * (pointer >> 2)
    return pointer & 3 == 0 and int.from_bytes(data[at : at + 2], "little") == _BOOTSTRAP
