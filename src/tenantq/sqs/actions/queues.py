"""CreateQueue, GetQueueUrl, ListQueues, ListDeadLetterSourceQueues, GetQueueAttributes, SetQueueAttributes, PurgeQueue, DeleteQueue."""

import base64
import binascii
from contextlib import suppress
from typing import Any, Final

from tenantq.domain.config import SqsQueue
from tenantq.domain.names import FIFO_SUFFIX
from tenantq.errors import Draining, NotFound
from tenantq.service.sqs_lookup import FoundQueues, FoundTenant
from tenantq.sqs.actions.tags import check_tags
from tenantq.sqs.addresses import is_queue_name, number_of
from tenantq.sqs.failures import (
    DELETED_RECENTLY,
    NAME_EXISTS,
    NO_SUCH_QUEUE,
    PURGE_IN_PROGRESS,
    SqsFailure,
    invalid,
    invalid_value,
    missing,
)
from tenantq.sqs.queue_attributes import (
    NEW_QUEUE,
    AttributeChanges,
    accepts_dead_letters,
    check_throughput,
    chosen,
    first_difference,
    read_attributes,
    shown_attributes,
)
from tenantq.sqs.requests import (
    CreateQueue,
    GetQueueAttributes,
    GetQueueUrl,
    ListQueues,
    Parameters,
    SetQueueAttributes,
)
from tenantq.sqs.sqs_call import ActionResult, SqsCall

PAGE_MAX: Final = 1_000
_REASON: Final = "requested over Amazon SQS"


async def create_queue(sqs_call: SqsCall) -> ActionResult:
    """Create a queue, or return the existing one if its attributes match."""
    given = sqs_call.read(CreateQueue)
    if not given.queue_name:
        raise missing("QueueName")
    name, attributes = given.queue_name, given.attributes or {}
    _check_name(name, attributes)
    fifo = name.endswith(FIFO_SUFFIX)
    tenant = await sqs_call.service.sqs_lookup.find_tenant(sqs_call.call, None, "put_queue", name)
    changes = read_attributes(attributes, fifo=fifo)
    result: ActionResult = {"QueueUrl": sqs_call.url(tenant.id, name)}
    if _exists(sqs_call, tenant, attributes):
        return result
    if await sqs_call.state.deletions.is_on(sqs_call.call, tenant.name, tenant.id, name):
        raise _deleted_recently()
    check_throughput(changes, SqsQueue())
    await _check_redrive(sqs_call, changes, attributes, tenant.id, name)
    now_s = sqs_call.state.clock.wall_ms() // 1_000
    tags = check_tags(name, given.tags or given.other_tags or {})
    settings: dict[str, Any] = {
        **NEW_QUEUE,
        **changes.settings,
        "sqs": {**changes.sqs, "created_at": now_s, "modified_at": now_s},
        **({"tags": tags} if tags else {}),
    }
    try:
        created = await sqs_call.service.queues.create(sqs_call.call, tenant.name, name, settings)
    except Draining as error:
        raise _deleted_recently() from error
    if not created:  # another call has created it meanwhile
        tenant = await sqs_call.service.sqs_lookup.find_tenant(sqs_call.call, None, "put_queue", name)
        if not _exists(sqs_call, tenant, attributes):
            raise _deleted_recently()
    return result


def _exists(sqs_call: SqsCall, tenant: FoundTenant, attributes: dict[str, str]) -> bool:
    """Return whether the queue exists. Raises if its attributes differ from these."""
    if tenant.queue is None:
        return False
    other = first_difference(shown_attributes(tenant.queue, sqs_call.region, None), attributes)
    if other is not None:
        text = f"A queue already exists with the same name and a different value for attribute {other}"
        raise SqsFailure(NAME_EXISTS, text)
    return True


def _check_name(name: str, attributes: dict[str, str]) -> None:
    wants_fifo = attributes.get("FifoQueue", "").lower() == "true"
    if wants_fifo and not (name.endswith(FIFO_SUFFIX) and is_queue_name(name)):
        raise invalid(
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
            "must end with .fifo suffix and be 1 to 80 in length."
        )
    if not is_queue_name(name) or (name.endswith(FIFO_SUFFIX) and not wants_fifo):
        raise invalid("Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")


async def _check_redrive(
    sqs_call: SqsCall, changes: AttributeChanges, attributes: dict[str, str], tenant_id: int, source: str
) -> None:
    """Raise SqsFailure unless the dead-letter queue has the same tenant and type and accepts the source."""
    if changes.redrive is None:
        return
    target, text = changes.redrive.target, attributes["RedrivePolicy"]
    if target.number not in {0, tenant_id}:
        with suppress(NotFound):  # a refused lookup is journaled
            await sqs_call.service.sqs_lookup.find_queue(sqs_call.call, target.number, "put_queue", target.name)
        raise invalid_value("RedrivePolicy", text, "Dead-letter queue must be owned by the same account as the source.")
    try:
        found = await sqs_call.service.sqs_lookup.find_queue(sqs_call.call, tenant_id, "put_queue", target.name)
    except NotFound as error:
        raise invalid_value("RedrivePolicy", text, "Dead letter target does not exist.") from error
    if found.fifo != source.endswith(FIFO_SUFFIX):
        raise invalid_value("RedrivePolicy", text, "Dead-letter queue must be same type of queue as the source.")
    if not accepts_dead_letters(found, source):
        problem = "The RedriveAllowPolicy of the dead-letter queue does not allow this source queue."
        raise invalid_value("RedrivePolicy", text, problem)


def _deleted_recently() -> SqsFailure:
    text = "You must wait 60 seconds after deleting a queue before you can create another with the same name."
    return SqsFailure(DELETED_RECENTLY, text)


async def get_queue_url(sqs_call: SqsCall) -> ActionResult:
    """Return the URL of a queue by its name."""
    given = sqs_call.read(GetQueueUrl)
    if not given.queue_name:
        raise missing("QueueName")
    number = None
    if given.owner:
        number = number_of(given.owner)
        if number is None:
            raise invalid_value("QueueOwnerAWSAccountId", given.owner, "An account has 12 digits.")
    if not is_queue_name(given.queue_name):
        raise SqsFailure(NO_SUCH_QUEUE, "The specified queue does not exist.")
    queue = await sqs_call.service.sqs_lookup.find_queue(sqs_call.call, number, "get_queue", given.queue_name)
    return {"QueueUrl": sqs_call.url(queue.tenant_id, queue.name)}


async def list_queues(sqs_call: SqsCall) -> ActionResult:
    """Return a page of queues by name, optionally with a name prefix."""
    given = sqs_call.read(ListQueues)
    found = await sqs_call.service.sqs_lookup.find_queues(sqs_call.call, None, prefix=given.queue_name_prefix or "")
    return _page(sqs_call, found, given, "QueueUrls")


async def list_dead_letter_source_queues(sqs_call: SqsCall) -> ActionResult:
    """Return the source queues of a dead-letter queue."""
    given = sqs_call.read(ListQueues)
    queue = await sqs_call.queue(given.queue_url, "get_queue")
    found = await sqs_call.service.sqs_lookup.find_queues(sqs_call.call, queue.tenant_id, dead_letter=queue.name)
    return {"queueUrls": [], **_page(sqs_call, found, given, "queueUrls")}


def _page(sqs_call: SqsCall, found: FoundQueues, given: ListQueues, field: str) -> dict[str, Any]:
    most, names = given.max_results, found.names
    if most is not None and not 1 <= most <= PAGE_MAX:
        raise invalid_value("MaxResults", most, f"MaxResults must be an integer between 1 and {PAGE_MAX}.")
    if given.next_token:
        after = _last_name(given.next_token)
        names = [name for name in names if name > after]
    page = names[: most or PAGE_MAX]
    result: dict[str, Any] = {}
    if page:
        result[field] = [sqs_call.url(found.tenant_id, name) for name in page]
    if most is not None and len(names) > len(page):
        result["NextToken"] = base64.urlsafe_b64encode(page[-1].encode()).decode()
    return result


def _last_name(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise invalid_value("NextToken", token, "It is not one that was returned by an earlier call.") from error


async def get_queue_attributes(sqs_call: SqsCall) -> ActionResult:
    """Return the requested attributes of a queue."""
    given, queue = await sqs_call.read_with_queue(GetQueueAttributes)
    if not given.attribute_names:
        return {}
    stats = (await sqs_call.service.queues.get(*sqs_call.at(queue))).stats
    shown = chosen(shown_attributes(queue, sqs_call.region, stats), given.attribute_names)
    return {"Attributes": shown} if shown else {}


async def set_queue_attributes(sqs_call: SqsCall) -> ActionResult:
    """Set some attributes of a queue."""
    given, queue = await sqs_call.read_with_queue(SetQueueAttributes)
    if not given.attributes:
        raise missing("Attribute.Name")
    changes = read_attributes(given.attributes, fifo=queue.fifo)
    check_throughput(changes, queue.config.sqs or SqsQueue())
    await _check_redrive(sqs_call, changes, given.attributes, queue.tenant_id, queue.name)
    if changes.redrive is not None and changes.redrive.target.name == queue.name:
        policy = given.attributes["RedrivePolicy"]
        raise invalid_value("RedrivePolicy", policy, "A queue cannot be its own dead-letter queue.")
    modified = {"modified_at": sqs_call.state.clock.wall_ms() // 1_000}
    settings = {**changes.settings, "sqs": {**changes.sqs, **modified}}
    if changes.redrive is not None:
        settings["dead_on_poll"] = True
    await sqs_call.service.queues.put(*sqs_call.at(queue), settings)
    return None


async def purge_queue(sqs_call: SqsCall) -> ActionResult:
    """Purge a queue: waiting messages, messages in flight, and deduplication IDs."""
    _, queue = await sqs_call.read_with_queue(Parameters)
    purges = sqs_call.state.purges
    if await purges.is_on(sqs_call.call, queue.tenant, queue.tenant_id, queue.name):
        problem = f"Only one PurgeQueue operation on {queue.name} is allowed every 60 seconds."
        raise SqsFailure(PURGE_IN_PROGRESS, problem)
    await sqs_call.service.queues.purge(*sqs_call.at(queue), confirm=queue.name, reason=_REASON)
    await purges.note(sqs_call.call, queue.tenant, queue.tenant_id, queue.name)
    return None


async def delete_queue(sqs_call: SqsCall) -> ActionResult:
    """Delete a queue with everything in it, leased or not."""
    _, queue = await sqs_call.read_with_queue(Parameters)
    await sqs_call.service.queues.delete(*sqs_call.at(queue), confirm=queue.name, reason=_REASON, force=True)
    await sqs_call.state.deletions.note(sqs_call.call, queue.tenant, queue.tenant_id, queue.name)
    return None
