"""StartMessageMoveTask, ListMessageMoveTasks, CancelMessageMoveTask: redrives of a dead-letter queue."""

import base64
import binascii
from typing import Any, Final

import msgspec

from tenantq.domain.names import FIFO_SUFFIX
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.errors import NotFound
from tenantq.service.redrives import RedriveInfo
from tenantq.service.sqs_lookup import FoundQueue
from tenantq.sqs.addresses import QueueAddress, parse_queue_arn
from tenantq.sqs.failures import (
    INTERNAL,
    NO_SUCH_QUEUE,
    NO_SUCH_RESOURCE,
    UNSUPPORTED,
    SqsFailure,
    checked_number,
    invalid,
    invalid_value,
    missing,
)
from tenantq.sqs.requests import CancelMessageMoveTask, ListMessageMoveTasks, StartMessageMoveTask
from tenantq.sqs.sqs_call import ActionResult, SqsCall

RATE_MAX: Final = 500
TASKS_MAX: Final = 10
_STATUS: Final = {"running": "RUNNING", "done": "COMPLETED", "cancelled": "CANCELLED", "failed": "FAILED"}


class MoveTaskHandle(msgspec.Struct, frozen=True, rename="camel"):
    """The decoded handle of a message move task."""

    task_id: str
    source_arn: str


async def start_message_move_task(sqs_call: SqsCall) -> ActionResult:
    """Start to move dead letters back, or to another queue."""
    given = sqs_call.read(StartMessageMoveTask)
    source = await _source(sqs_call, given.source_arn)
    rate = given.max_number_of_messages_per_second
    if rate is not None:
        checked_number("MaxNumberOfMessagesPerSecond", rate, 1, RATE_MAX)
    to = None
    if given.destination_arn:
        address = parse_queue_arn(given.destination_arn)
        found = await _find(sqs_call, address, "DestinationArn")
        if found.tenant_id != source.tenant_id:
            raise invalid_value("DestinationArn", given.destination_arn, "It is another account's.")
        if found.name.endswith(FIFO_SUFFIX) != source.fifo:
            raise invalid_value("DestinationArn", given.destination_arn, "It is not the same type of queue.")
        if found.name == source.name:
            raise invalid("Source queue arn and destination queue arn cannot be the same.")
        to = found.name
    senders = await sqs_call.service.sqs_lookup.find_queues(sqs_call.call, source.tenant_id, dead_letter=source.name)
    if not senders.names:
        raise invalid("Source queue must be configured as a Dead Letter Queue.")
    if any(task.state == "running" for task in await _tasks(sqs_call, source)):
        raise invalid(
            "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
        )
    task = await sqs_call.service.redrives.start(*sqs_call.at(source), filter=RedriveFilter(to=to), rate=rate)
    return {"TaskHandle": _handle(sqs_call, source, task)}


async def list_message_move_tasks(sqs_call: SqsCall) -> ActionResult:
    """Return the newest tasks of a dead-letter queue."""
    given = sqs_call.read(ListMessageMoveTasks)
    source = await _source(sqs_call, given.source_arn)
    most = checked_number("MaxResults", 1 if given.max_results is None else given.max_results, 1, TASKS_MAX)
    tasks = await _tasks(sqs_call, source)
    return {"Results": [_shown(sqs_call, source, task) for task in tasks[:most]]}


async def cancel_message_move_task(sqs_call: SqsCall) -> ActionResult:
    """Cancel a task. Messages that it moved stay moved."""
    given = sqs_call.read(CancelMessageMoveTask)
    if not given.task_handle:
        raise missing("TaskHandle")
    try:
        handle = msgspec.json.decode(base64.b64decode(given.task_handle.encode(), validate=True), type=MoveTaskHandle)
    except (binascii.Error, UnicodeError, msgspec.DecodeError) as error:
        raise invalid("Value for parameter TaskHandle is invalid.") from error
    source = await _source(sqs_call, handle.source_arn)
    task = next((one for one in await _tasks(sqs_call, source) if one.id == handle.task_id), None)
    if task is None:
        raise SqsFailure(NO_SUCH_RESOURCE, "Task does not exist.")
    if task.state == "running":
        task = await sqs_call.service.redrives.cancel(*sqs_call.at(source), handle.task_id)
        if task.state == "cancelled":
            return {"ApproximateNumberOfMessagesMoved": task.moved}
    raise SqsFailure(UNSUPPORTED, "Only active tasks can be cancelled.")


async def _tasks(sqs_call: SqsCall, source: FoundQueue) -> list[RedriveInfo]:
    """Return the tasks of a dead-letter queue, newest first. SQS has no dry runs."""
    return [task for task in await sqs_call.service.redrives.list(*sqs_call.at(source)) if not task.dry_run]


async def _source(sqs_call: SqsCall, arn: str | None) -> FoundQueue:
    if not arn:
        raise missing("SourceArn")
    return await _find(sqs_call, parse_queue_arn(arn), "SourceArn")


async def _find(sqs_call: SqsCall, address: QueueAddress, parameter: str) -> FoundQueue:
    try:
        return await sqs_call.service.sqs_lookup.find_queue(sqs_call.call, address.number, "redrive", address.name)
    except NotFound as error:
        raise SqsFailure(
            NO_SUCH_RESOURCE, f"The resource that you specified for the {parameter} parameter doesn't exist."
        ) from error


def _handle(sqs_call: SqsCall, source: FoundQueue, task: RedriveInfo) -> str:
    arn = sqs_call.arn(source.tenant_id, source.name)
    return base64.b64encode(msgspec.json.encode(MoveTaskHandle(task.id, arn))).decode()


def _shown(sqs_call: SqsCall, source: FoundQueue, task: RedriveInfo) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "Status": _STATUS[task.state],
        "SourceArn": sqs_call.arn(source.tenant_id, source.name),
        "ApproximateNumberOfMessagesMoved": task.moved,
        "ApproximateNumberOfMessagesToMove": task.found,
        "StartedTimestamp": task.started_at,
    }
    if task.state == "running":
        shown["TaskHandle"] = _handle(sqs_call, source, task)
    if task.state == "failed":
        shown["FailureReason"] = (NO_SUCH_QUEUE if task.missing is not None else INTERNAL).code
    if task.to is not None:
        shown["DestinationArn"] = sqs_call.arn(source.tenant_id, task.to)
    if task.rate is not None:
        shown["MaxNumberOfMessagesPerSecond"] = task.rate
    return shown
