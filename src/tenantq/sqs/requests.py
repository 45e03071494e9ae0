"""The parameters of every action, for both protocols."""

from typing import Generic, TypeVar

import msgspec


class Parameters(msgspec.Struct, frozen=True, kw_only=True, rename="pascal", gc=False):
    """Parameters of an action. Unknown parameters are ignored; each action checks its required ones."""

    queue_url: str | None = None
    id: str | None = None  # of an entry of a batch


P = TypeVar("P", bound=Parameters)


class ActionBatch(Parameters, Generic[P], frozen=True, kw_only=True):
    """Entries with the parameters of a single action each."""

    entries: list[P] | None = None


class AttributeValue(msgspec.Struct, frozen=True, kw_only=True, rename="pascal", gc=False):
    """A value of an attribute of a message, with its type."""

    data_type: str | None = None
    string_value: str | None = None
    binary_value: bytes | None = None


Attributes = dict[str, AttributeValue]


class SendMessage(Parameters, frozen=True, kw_only=True):
    """A message to send."""

    message_body: str | None = None
    delay_seconds: int | None = None
    message_attributes: Attributes | None = None
    message_system_attributes: Attributes | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class ReceiveMessage(Parameters, frozen=True, kw_only=True):
    """Which messages to receive, and which of their attributes."""

    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: int | None = None
    visibility_timeout: int | None = None
    wait_time_seconds: int | None = None
    receive_request_attempt_id: str | None = None


class DeleteMessage(Parameters, frozen=True, kw_only=True):
    """A message to delete."""

    receipt_handle: str | None = None


class ChangeMessageVisibility(Parameters, frozen=True, kw_only=True):
    """A message whose visibility timeout changes."""

    receipt_handle: str | None = None
    visibility_timeout: int | None = None


class CreateQueue(Parameters, frozen=True, kw_only=True):
    """A queue to create."""

    queue_name: str | None = None
    attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = msgspec.field(default=None, name="tags")
    other_tags: dict[str, str] | None = msgspec.field(default=None, name="Tags")


class GetQueueUrl(Parameters, frozen=True, kw_only=True):
    """A queue by its name."""

    queue_name: str | None = None
    owner: str | None = msgspec.field(default=None, name="QueueOwnerAWSAccountId")


class ListQueues(Parameters, frozen=True, kw_only=True):
    """A page of queues, or of the source queues of a dead-letter queue."""

    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: int | None = None


class GetQueueAttributes(Parameters, frozen=True, kw_only=True):
    """Attributes to read."""

    attribute_names: list[str] | None = None


class SetQueueAttributes(Parameters, frozen=True, kw_only=True):
    """Attributes to set."""

    attributes: dict[str, str] | None = None


class TagQueue(Parameters, frozen=True, kw_only=True):
    """Tags to add."""

    tags: dict[str, str] | None = None


class UntagQueue(Parameters, frozen=True, kw_only=True):
    """Tags to remove."""

    tag_keys: list[str] | None = None


class AddPermission(Parameters, frozen=True, kw_only=True):
    """A statement for a queue's policy."""

    label: str | None = None
    accounts: list[str] | None = msgspec.field(default=None, name="AWSAccountIds")
    actions: list[str] | None = None


class RemovePermission(Parameters, frozen=True, kw_only=True):
    """A statement to remove from a queue's policy."""

    label: str | None = None


class StartMessageMoveTask(Parameters, frozen=True, kw_only=True):
    """Dead letters to send back."""

    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None


class CancelMessageMoveTask(Parameters, frozen=True, kw_only=True):
    """A task to stop."""

    task_handle: str | None = None


class ListMessageMoveTasks(Parameters, frozen=True, kw_only=True):
    """The tasks of one dead-letter queue."""

    source_arn: str | None = None
    max_results: int | None = None
