"""Idempotency keys for rows without one: the same row of the same write gets the same key, in any order of rows.

A repeated task may see its rows in another order, so a row's place cannot be its key. The key is a hash of the write, the
task's partition, the row's content, and a count that distinguishes identical rows. It does not matter which of them is first.
"""

import hashlib
from typing import Final

import msgspec

from tenantq.pipeline.connector.message_rows import OutgoingRow

PREFIX: Final = "spark-"
_DIGEST_BYTES: Final = 16


class RowKeys:
    """Creates the keys of one task. With ``once``, identical rows are one message, in all tasks."""

    def __init__(self, write_id: str, partition: int, *, once: bool) -> None:
        self._write_id = write_id
        self._partition = partition
        self._once = once
        self._seen: dict[bytes, int] = {}  # about 100 bytes a row; nothing with ``once``

    def key(self, row: OutgoingRow) -> str:
        """Return the row's own key, or a new one."""
        if row.message.key is not None:
            return row.message.key
        content = _content(row)
        if self._once:
            return self._made(content, -1, 0)
        count = self._seen.get(content, 0)
        self._seen[content] = count + 1
        return self._made(content, self._partition, count)

    def _made(self, content: bytes, partition: int, count: int) -> str:
        text = msgspec.json.encode((self._write_id, partition, count)) + content
        return PREFIX + hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest()


def _content(row: OutgoingRow) -> bytes:
    """Return a digest of everything in the message."""
    message = row.message
    facts = (
        row.tenant,
        row.queue,
        message.body,
        message.priority,
        message.delay_ms,
        message.ttl_ms,
        message.group,
        sorted((message.attributes or {}).items()),
        message.max_attempts,
    )
    return hashlib.blake2b(msgspec.msgpack.encode(facts), digest_size=_DIGEST_BYTES).digest()
