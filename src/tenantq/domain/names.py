"""The names of tenants and queues: what is allowed, checked in one place."""

from __future__ import annotations

import re
import zlib

from tenantq.errors import Invalid

_TENANT = re.compile(r"[a-z0-9](?:[a-z0-9-]{1,30})[a-z0-9]")
_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_SHARD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")

DEFAULT_TENANT = "default"
PROBE_TENANTS = ("tenantq-probe-a", "tenantq-probe-b")  # the server's own, between which it probes their isolation
FIFO_SUFFIX = ".fifo"
QUEUE_CHARS_MAX = 80


def check_tenant_name(name: object) -> str:
    """Return ``name`` if it may name a tenant, else raise Invalid."""
    if type(name) is not str or _TENANT.fullmatch(name) is None:
        raise Invalid("tenant: a name is 3 to 32 characters of a-z, 0-9 and '-', with a letter or digit at both ends")
    return name


def check_queue_name(name: object) -> str:
    """Return ``name`` if it may name a queue, else raise Invalid."""
    if type(name) is not str or _QUEUE.fullmatch(name) is None:
        raise Invalid("queue: a name is 1 to 80 characters of A-Z, a-z, 0-9, '_' and '-', optionally ending in '.fifo'")
    return name


def check_shard_name(field: str, name: str) -> str:
    """Return ``name`` if it may name a shard, else raise Invalid that begins with ``field``."""
    if type(name) is not str or _SHARD.fullmatch(name) is None:
        raise Invalid(f"{field}: a name is 1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-'")
    return name


def dead_letter_name(queue: str) -> str:
    """Return the name of the dead-letter queue of ``queue`` where none is configured.

    A FIFO queue's dead letters keep their groups, so their queue is FIFO as well.
    """
    stem, fifo = (queue[: -len(FIFO_SUFFIX)], FIFO_SUFFIX) if queue.endswith(FIFO_SUFFIX) else (queue, "")
    tail = "-dlq" + fifo
    if len(stem) + len(tail) > QUEUE_CHARS_MAX:
        tail = f"-{zlib.crc32(queue.encode()):08x}" + tail  # a name cut short must not be another queue's
    return stem[: QUEUE_CHARS_MAX - len(tail)] + tail
