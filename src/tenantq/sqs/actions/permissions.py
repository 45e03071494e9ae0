"""AddPermission, RemovePermission: statements of a queue's policy. It is stored and returned, but not enforced: tenantq's grants decide."""

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tenantq.domain.config import QueueConfig, SqsQueue
from tenantq.service.sqs_lookup import FoundQueue
from tenantq.sqs.failures import OVER_LIMIT, SqsFailure, invalid_value, missing
from tenantq.sqs.requests import AddPermission, RemovePermission
from tenantq.sqs.sqs_call import ActionResult, SqsCall

ACTIONS_MAX: Final = 7
_LABEL: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_GRANTABLE: Final = frozenset(
    ("*", "SendMessage", "ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes",
     "GetQueueUrl", "ListDeadLetterSourceQueues", "PurgeQueue")
)  # fmt: skip
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


async def add_permission(sqs_call: SqsCall) -> ActionResult:
    """Add a statement to the policy."""
    given, queue = await sqs_call.read_with_queue(AddPermission)
    label = _checked_label(given.label)
    if not given.accounts:
        raise missing("AWSAccountIds")
    if not given.actions:
        raise missing("Actions")
    if len(given.actions) > ACTIONS_MAX:
        raise SqsFailure(OVER_LIMIT, f"{len(given.actions)} Actions were found, maximum allowed is {ACTIONS_MAX}.")
    for action in given.actions:
        if action not in _GRANTABLE:
            value = f"SQS:{action[:80]}"
            raise invalid_value("ActionName", value, "Only the queue owner is allowed to invoke this action.")
    principals = [f"arn:aws:iam::{account}:root" for account in given.accounts]
    actions = [f"SQS:{action}" for action in given.actions]
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": principals if len(principals) > 1 else principals[0]},
        "Action": actions if len(actions) > 1 else actions[0],
        "Resource": sqs_call.arn(queue.tenant_id, queue.name),
    }

    def added(policy: dict[str, Any]) -> dict[str, Any]:
        if any(one.get("Sid") == label for one in policy["Statement"]):
            raise invalid_value("Label", label, "Already exists.")
        return {**policy, "Statement": [*policy["Statement"], statement]}

    await _edit(sqs_call, queue, added)
    return None


async def remove_permission(sqs_call: SqsCall) -> ActionResult:
    """Remove a statement from the policy."""
    given, queue = await sqs_call.read_with_queue(RemovePermission)
    label = _checked_label(given.label)

    def left(policy: dict[str, Any]) -> dict[str, Any] | None:
        others = [one for one in policy["Statement"] if one.get("Sid") != label]
        if len(others) == len(policy["Statement"]):
            raise invalid_value("Label", label, "can't find label.")
        return {**policy, "Statement": others} if others else None

    await _edit(sqs_call, queue, left)
    return None


async def _edit(
    sqs_call: SqsCall, queue: FoundQueue, change: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> None:
    """Change the current policy. Concurrent calls do not overwrite each other."""

    def edit(config: QueueConfig) -> dict[str, Any]:
        policy = change(_policy(sqs_call, queue, (config.sqs or SqsQueue()).policy))
        return {"sqs": {"policy": _encode(policy).decode() if policy is not None else ""}}

    await sqs_call.edit_queue(queue, edit)


def _policy(sqs_call: SqsCall, queue: FoundQueue, text: str) -> dict[str, Any]:
    arn = sqs_call.arn(queue.tenant_id, queue.name)
    policy = _decode(text) if text else {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy"}
    statements: Any = policy.get("Statement", [])
    listed = statements if isinstance(statements, list) else [statements]
    return {**policy, "Statement": [one for one in listed if isinstance(one, dict)]}


def _checked_label(label: str | None) -> str:
    if not label:
        raise missing("Label")
    if _LABEL.fullmatch(label) is None:
        raise invalid_value(
            "Label", label, "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        )
    return label
