"""The encoding of large segments in a process of low priority, so that callers of the server do not wait for the GIL."""

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from tenantq.journal.segment import encode

log = logging.getLogger("tenantq.journal")

_INLINE_RECORDS_MAX: Final = 500  # about 20 ms of work
_NICENESS: Final = 10
_ROWS_BYTES: Final = 8


def encode_segment(records: Sequence[bytes]) -> tuple[bytes, int]:
    """Return the bytes of a segment and its number of rows, from stored records."""
    if len(records) <= _INLINE_RECORDS_MAX:
        return encode(records)
    done = subprocess.run(  # noqa: S603  # this interpreter, with fixed arguments
        [sys.executable, "-m", __name__],
        input=msgspec.msgpack.encode(records),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # signals from the terminal are for the server, which lets an export finish
        check=False,
    )
    if done.returncode != 0:
        log.warning("the segment encoder ended with code %d; the server encodes the segment itself", done.returncode)
        return encode(records)
    return done.stdout[_ROWS_BYTES:], int.from_bytes(done.stdout[:_ROWS_BYTES])


def main() -> None:
    """Read stored records from stdin, and write the number of rows and the segment to stdout."""
    os.nice(_NICENESS)
    data, rows = encode(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[bytes]))
    sys.stdout.buffer.write(rows.to_bytes(_ROWS_BYTES) + data)


if __name__ == "__main__":
    main()
