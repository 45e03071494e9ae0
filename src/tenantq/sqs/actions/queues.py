"""CreateQueue, GetQueueUrl, ListQueues, ListDeadLetterSourceQueues, GetQueueAttributes, SetQueueAttributes, PurgeQueue, DeleteQueue."""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tenantq.domain.names import FIFO_SUFFIX
from tenantq.domain.sqs_queue import SqsQueue
from tenantq.errors import Draining, NotFound
from tenantq.service.finding import FoundQueue
from tenantq.sqs.addresses import is_queue_name, number_of
from tenantq.sqs.failures import (
    DELETED_RECENTLY,
    INVALID_VALUE,
    NAME_EXISTS,
    NO_SUCH_QUEUE,
    PURGE_IN_PROGRESS,
    SqsFailure,
    invalid_value,
    missing,
)
from tenantq.sqs.queue_attributes import (
    FIGURES,
    NEW_QUEUE,
    Changes,
    check_throughput,
    chosen,
    first_difference,
    lets_letters_in,
    read_attributes,
    shown_attributes,
)
from tenantq.sqs.requests import (
    CreateQueue,
    GetQueueAttributes,
    GetQueueUrl,
    ListDeadLetterSourceQueues,
    ListQueues,
    Parameters,
    SetQueueAttributes,
)

if TYPE_CHECKING:
    from tenantq.engine.queue_state import TenantState
    from tenantq.sqs.sqs_call import Result, SqsCall

PAGE_MAX: Final = 1_000
_WHY: Final = "asked for over Amazon SQS"


async def create_queue(visit: SqsCall) -> Result:
    """Make a queue, or find the one of this name that is just so."""
    given = visit.read(CreateQueue)
    if not given.queue_name:
        raise missing("QueueName")
    name, attributes = given.queue_name, given.attributes or {}
    _check_name(name, attributes)
    fifo = name.endswith(FIFO_SUFFIX)
    state = await visit.service.find_tenant(visit.call, None, "put_queue", name)
    changes = read_attributes(attributes, fifo=fifo)
    result: Result = {"QueueUrl": visit.url(state.id, name)}
    if _is_there(visit, state, name, attributes):
        return result
    if visit.shared.deletions.is_on(state.id, name):
        raise _deleted_recently()
    check_throughput(changes, SqsQueue())
    await _check_redrive(visit, changes, attributes, state.id, name)
    now_s = visit.shared.clock.wall_ms() // 1_000
    tags = given.tags or given.other_tags
    settings: dict[str, Any] = {
        **NEW_QUEUE,
        **changes.settings,
        "sqs": {**changes.sqs, "created_at": now_s, "modified_at": now_s},
        **({"tags": tags} if tags else {}),
    }
    try:
        made = await visit.service.make_queue(visit.call, state.name, name, settings)
    except Draining as error:
        raise _deleted_recently() from error
    if not made and not _is_there(visit, state, name, attributes):  # somebody else was quicker
        raise _deleted_recently()
    return result


def _is_there(visit: SqsCall, state: TenantState, name: str, attributes: dict[str, str]) -> bool:
    """Tell whether there is a queue of this name; raise if it has other attributes than these."""
    there = state.queues.get(name)
    if there is None or there.status == "draining":
        return False
    found = FoundQueue(state.name, state.id, name, there.id, there.config)
    other = first_difference(shown_attributes(found, visit.region, None), attributes)
    if other is not None:
        raise SqsFailure(
            NAME_EXISTS, f"A queue already exists with the same name and a different value for attribute {other}"
        )
    return True


def _check_name(name: str, attributes: dict[str, str]) -> None:
    wants_fifo = attributes.get("FifoQueue", "").lower() == "true"
    if wants_fifo and not (name.endswith(FIFO_SUFFIX) and is_queue_name(name)):
        raise SqsFailure(
            INVALID_VALUE,
            "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
            "must end with .fifo suffix and be 1 to 80 in length.",
        )
    if not is_queue_name(name) or (name.endswith(FIFO_SUFFIX) and not wants_fifo):
        raise SqsFailure(
            INVALID_VALUE, "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        )


async def _check_redrive(
    visit: SqsCall, changes: Changes, attributes: dict[str, str], tenant_id: int, source: str
) -> None:
    """Raise unless dead letters can go where they are to go: a queue of the same tenant and kind that takes them."""
    if changes.redrive is None:
        return
    target, text = changes.redrive.target, attributes["RedrivePolicy"]
    if target.number not in {0, tenant_id}:
        with suppress(NotFound):  # who may not see it leaves a trace
            await visit.service.find_queue(visit.call, target.number, "put_queue", target.name)
        raise invalid_value("RedrivePolicy", text, "Dead-letter queue must be owned by the same account as the source.")
    try:
        found = await visit.service.find_queue(visit.call, tenant_id, "put_queue", target.name)
    except NotFound as error:
        raise invalid_value("RedrivePolicy", text, "Dead letter target does not exist.") from error
    if found.fifo != source.endswith(FIFO_SUFFIX):
        raise invalid_value("RedrivePolicy", text, "Dead-letter queue must be same type of queue as the source.")
    if not lets_letters_in(found, source):
        raise invalid_value(
            "RedrivePolicy", text, "The RedriveAllowPolicy of the dead-letter queue does not let this queue in."
        )


def _deleted_recently() -> SqsFailure:
    return SqsFailure(
        DELETED_RECENTLY,
        "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
    )


async def get_queue_url(visit: SqsCall) -> Result:
    """Return the URL of a queue by its name."""
    given = visit.read(GetQueueUrl)
    if not given.queue_name:
        raise missing("QueueName")
    number = None
    if given.owner:
        number = number_of(given.owner)
        if number is None:
            raise invalid_value("QueueOwnerAWSAccountId", given.owner, "An account has 12 digits.")
    if not is_queue_name(given.queue_name):
        raise SqsFailure(NO_SUCH_QUEUE, "The specified queue does not exist.")
    queue = await visit.service.find_queue(visit.call, number, "get_queue", given.queue_name)
    return {"QueueUrl": visit.url(queue.tenant_id, queue.name)}


async def list_queues(visit: SqsCall) -> Result:
    """Return a page of queues by name, where asked to those that begin with something."""
    given = visit.read(ListQueues)
    state, names = await visit.service.find_queues(visit.call, None, prefix=given.queue_name_prefix or "")
    return _page(visit, state.id, names, given, "QueueUrls")


async def list_dead_letter_source_queues(visit: SqsCall) -> Result:
    """Return the queues whose dead letters go to one."""
    given = visit.read(ListDeadLetterSourceQueues)
    queue = await visit.queue(given.queue_url, "get_queue")
    state, names = await visit.service.find_queues(visit.call, queue.tenant_id, dead_letter=queue.name)
    return {"queueUrls": [], **_page(visit, state.id, names, given, "queueUrls")}


def _page(
    visit: SqsCall, tenant_id: int, names: list[str], given: ListQueues | ListDeadLetterSourceQueues, field: str
) -> dict[str, Any]:
    most = given.max_results
    if most is not None and not 1 <= most <= PAGE_MAX:
        raise invalid_value("MaxResults", most, f"MaxResults must be an integer between 1 and {PAGE_MAX}.")
    if given.next_token:
        after = _last_name(given.next_token)
        names = [name for name in names if name > after]
    page = names[: most or PAGE_MAX]
    result: dict[str, Any] = {}
    if page:
        result[field] = [visit.url(tenant_id, name) for name in page]
    if most is not None and len(names) > len(page):
        result["NextToken"] = base64.urlsafe_b64encode(page[-1].encode()).decode()
    return result


def _last_name(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise invalid_value("NextToken", token, "It is not one that was returned by an earlier call.") from error


async def get_queue_attributes(visit: SqsCall) -> Result:
    """Return what is asked for of a queue."""
    given = visit.read(GetQueueAttributes)
    queue = await visit.queue(given.queue_url, "get_queue")
    wanted = given.attribute_names or []
    stats = None
    if "All" in wanted or any(name in FIGURES for name in wanted):
        stats = (await visit.service.get_queue(visit.call, queue.tenant, queue.name)).stats
    shown = chosen(shown_attributes(queue, visit.region, stats), wanted) if wanted else {}
    return {"Attributes": shown} if shown else {}


async def set_queue_attributes(visit: SqsCall) -> Result:
    """Change attributes of a queue; the others stay."""
    given = visit.read(SetQueueAttributes)
    queue = await visit.queue(given.queue_url, "put_queue")
    if not given.attributes:
        raise missing("Attribute.Name")
    changes = read_attributes(given.attributes, fifo=queue.fifo)
    check_throughput(changes, queue.config.sqs or SqsQueue())
    await _check_redrive(visit, changes, given.attributes, queue.tenant_id, queue.name)
    if changes.redrive is not None and changes.redrive.target.name == queue.name:
        raise invalid_value(
            "RedrivePolicy", given.attributes["RedrivePolicy"], "A queue cannot be its own dead-letter queue."
        )
    modified = {"modified_at": visit.shared.clock.wall_ms() // 1_000}
    settings = {**changes.settings, "sqs": {**changes.sqs, **modified}}
    if changes.redrive is not None:
        settings["dead_on_poll"] = True
    await visit.service.put_queue(visit.call, queue.tenant, queue.name, settings)
    return None


async def purge_queue(visit: SqsCall) -> Result:
    """Empty a queue: what waits, what is in flight, and what is remembered of duplicates."""
    queue = await visit.queue(visit.read(Parameters).queue_url, "purge")
    purges = visit.shared.purges
    if purges.is_on(queue.tenant_id, queue.name):
        raise SqsFailure(
            PURGE_IN_PROGRESS, f"Only one PurgeQueue operation on {queue.name} is allowed every 60 seconds."
        )
    await visit.service.purge(visit.call, queue.tenant, queue.name, confirm=queue.name, reason=_WHY)
    purges.note(queue.tenant_id, queue.name)
    return None


async def delete_queue(visit: SqsCall) -> Result:
    """Delete a queue with everything in it, leased or not."""
    queue = await visit.queue(visit.read(Parameters).queue_url, "delete_queue")
    await visit.service.delete_queue(visit.call, queue.tenant, queue.name, confirm=queue.name, reason=_WHY, force=True)
    visit.shared.deletions.note(queue.tenant_id, queue.name)
    return None
