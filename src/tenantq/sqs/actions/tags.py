"""TagQueue, UntagQueue, ListQueueTags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenantq.sqs.failures import missing
from tenantq.sqs.requests import Parameters, TagQueue, UntagQueue

if TYPE_CHECKING:
    from tenantq.sqs.sqs_call import Result, SqsCall


async def tag_queue(visit: SqsCall) -> Result:
    """Add tags, in place of those of the same names."""
    given = visit.read(TagQueue)
    queue = await visit.queue(given.queue_url, "put_queue")
    if not given.tags:
        raise missing("Tags")
    added = given.tags
    await visit.service.edit_queue(
        visit.call, queue.tenant, queue.name, lambda config: {"tags": {**config.tags, **added}}
    )
    return None


async def untag_queue(visit: SqsCall) -> Result:
    """Take tags away; one that is not there is gone already."""
    given = visit.read(UntagQueue)
    queue = await visit.queue(given.queue_url, "put_queue")
    if not given.tag_keys:
        raise missing("TagKeys")
    gone = frozenset(given.tag_keys)
    await visit.service.edit_queue(
        visit.call,
        queue.tenant,
        queue.name,
        lambda config: {"tags": {name: value for name, value in config.tags.items() if name not in gone}},
    )
    return None


async def list_queue_tags(visit: SqsCall) -> Result:
    """Return all tags of a queue."""
    queue = await visit.queue(visit.read(Parameters).queue_url, "get_queue")
    return {"Tags": queue.config.tags} if queue.config.tags else {}
