"""The mapping file of a migration: which queues of the source go to which tenant and queue.

[[queues]]
source = "jobqueue:high_*"   # name of the queue at the source, with * and ? as wildcards
tenant = "acme"              # optional
queue = "imports"            # optional
priority = 5                 # optional: 0 to 9
skip = false                 # optional: true leaves these queues out

The first entry that matches counts. A queue that no entry matches goes where the command says.
"""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec

from tenantq.domain.limits import Priority
from tenantq.domain.names import QUEUE_CHARS_MAX, QueueName, TenantName, dead_letter_name
from tenantq.domain.validation import build
from tenantq.errors import Invalid
from tenantq.runtime.toml_files import read_toml
from tenantq.sources.source import SourceMessage

_NOT_IN_NAMES: Final = re.compile("[^A-Za-z0-9_-]+")


class MappingEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file."""

    source: str
    tenant: TenantName | None = None
    queue: QueueName | None = None
    priority: Priority | None = None
    skip: bool = False


class _MappingFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    queues: list[MappingEntry]


class Destination(msgspec.Struct, frozen=True):
    """The tenant and queue for the messages of a source queue."""

    tenant: str
    queue: str
    priority: int | None = None


class Mapping:
    """Finds the destination of each message."""

    def __init__(self, entries: list[MappingEntry], tenant: str | None, queue: str | None, own_tenant: str) -> None:
        """``tenant`` and ``queue`` are those of the command; ``own_tenant`` is used if nothing else names one."""
        self._entries = entries
        self._tenant, self._queue, self._own_tenant = tenant, queue, own_tenant
        self._found: dict[tuple[str | None, str], Destination | None] = {}

    def destination(self, message: SourceMessage) -> Destination | None:
        """Return where a message goes; None if it is left out. Dead letters go to the dead-letter queue."""
        found = self.of_queue(message.tenant, message.queue)
        if found is None or message.dead is None:
            return found
        return msgspec.structs.replace(found, queue=dead_letter_name(found.queue))

    def of_queue(self, tenant: str | None, queue: str) -> Destination | None:
        """Return where the messages of a source queue go; None if they are left out."""
        if (tenant, queue) not in self._found:
            self._found[tenant, queue] = self._find(tenant, queue)
        return self._found[tenant, queue]

    def _find(self, tenant: str | None, queue: str) -> Destination | None:
        entry = next((one for one in self._entries if fnmatchcase(queue, one.source)), None)
        if entry is not None and entry.skip:
            return None
        entry = entry or MappingEntry(source=queue)
        return Destination(
            entry.tenant or self._tenant or tenant or self._own_tenant,
            entry.queue or self._queue or queue_name(queue),
            entry.priority,
        )


def queue_name(source: str) -> str:
    """Return a valid queue name for a queue of another system."""
    stem, fifo = (source[:-5], ".fifo") if source.endswith(".fifo") else (source, "")
    name = _NOT_IN_NAMES.sub("-", stem).strip("-")[: QUEUE_CHARS_MAX - len(fifo)]
    if not name:
        raise Invalid(f"queue: {source!r} cannot be converted to a valid name. Set one with --queue or --mapping.")
    return name + fifo


def load_mapping(file: Path | None) -> list[MappingEntry]:
    """Return the entries of a mapping file. Raises Invalid if it is malformed."""
    if file is None:
        return []
    return build(_MappingFile, read_toml(file, dict[str, Any], "mapping"), f"mapping {file}: ").queues
