"""Every action by name, with the action that a grant must allow."""

from collections.abc import Awaitable, Callable
from typing import Final

from tenantq.sqs.actions import move_tasks, permissions, queues, received_messages, sent_messages, tags
from tenantq.sqs.sqs_call import ActionResult, SqsCall

Act = Callable[[SqsCall], Awaitable[ActionResult]]

ACTIONS: Final[dict[str, tuple[Act, str]]] = {
    "AddPermission": (permissions.add_permission, "put_queue"),
    "CancelMessageMoveTask": (move_tasks.cancel_message_move_task, "redrive"),
    "ChangeMessageVisibility": (received_messages.change_message_visibility, "extend"),
    "ChangeMessageVisibilityBatch": (received_messages.change_message_visibility_batch, "extend"),
    "CreateQueue": (queues.create_queue, "put_queue"),
    "DeleteMessage": (received_messages.delete_message, "ack"),
    "DeleteMessageBatch": (received_messages.delete_message_batch, "ack"),
    "DeleteQueue": (queues.delete_queue, "delete_queue"),
    "GetQueueAttributes": (queues.get_queue_attributes, "get_queue"),
    "GetQueueUrl": (queues.get_queue_url, "get_queue"),
    "ListDeadLetterSourceQueues": (queues.list_dead_letter_source_queues, "list_queues"),
    "ListMessageMoveTasks": (move_tasks.list_message_move_tasks, "redrive"),
    "ListQueueTags": (tags.list_queue_tags, "get_queue"),
    "ListQueues": (queues.list_queues, "list_queues"),
    "PurgeQueue": (queues.purge_queue, "purge"),
    "ReceiveMessage": (received_messages.receive_message, "poll"),
    "RemovePermission": (permissions.remove_permission, "put_queue"),
    "SendMessage": (sent_messages.send_message, "add"),
    "SendMessageBatch": (sent_messages.send_message_batch, "add"),
    "SetQueueAttributes": (queues.set_queue_attributes, "put_queue"),
    "StartMessageMoveTask": (move_tasks.start_message_move_task, "redrive"),
    "TagQueue": (tags.tag_queue, "put_queue"),
    "UntagQueue": (tags.untag_queue, "put_queue"),
}
