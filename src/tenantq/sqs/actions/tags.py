"""TagQueue, UntagQueue, ListQueueTags."""

from typing import Final

from tenantq.sqs.failures import invalid, missing
from tenantq.sqs.requests import Parameters, TagQueue, UntagQueue
from tenantq.sqs.sqs_call import ActionResult, SqsCall

TAGS_MAX: Final = 50


async def tag_queue(sqs_call: SqsCall) -> ActionResult:
    """Add tags. Tags of the same names are replaced."""
    given, queue = await sqs_call.read_with_queue(TagQueue)
    if not given.tags:
        raise missing("Tags")
    added = given.tags
    await sqs_call.edit_queue(queue, lambda config: {"tags": check_tags(queue.name, {**config.tags, **added})})
    return None


def check_tags(queue: str, tags: dict[str, str]) -> dict[str, str]:
    """Return the tags of a queue. Raises SqsFailure if there are too many."""
    if len(tags) > TAGS_MAX:
        raise invalid(f"Too many tags added for queue {queue}.")
    return tags


async def untag_queue(sqs_call: SqsCall) -> ActionResult:
    """Remove tags. Unknown tags are ignored."""
    given, queue = await sqs_call.read_with_queue(UntagQueue)
    if not given.tag_keys:
        raise missing("TagKeys")
    gone = frozenset(given.tag_keys)
    await sqs_call.edit_queue(
        queue, lambda config: {"tags": {name: value for name, value in config.tags.items() if name not in gone}}
    )
    return None


async def list_queue_tags(sqs_call: SqsCall) -> ActionResult:
    """Return all tags of a queue."""
    _, queue = await sqs_call.read_with_queue(Parameters)
    tags = (await sqs_call.service.queues.get(*sqs_call.at(queue))).config.tags
    return {"Tags": tags} if tags else {}
