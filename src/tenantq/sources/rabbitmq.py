"""RabbitMQ: drained with unacknowledged deliveries."""

import secrets
from collections.abc import Iterator
from typing import Any, Final

from tenantq.errors import Invalid, Unavailable
from tenantq.sources.source import (
    BATCH_MESSAGES,
    InProgress,
    Mode,
    SourceBatch,
    SourceMessage,
    SourceQueue,
    text_attributes,
)

_PRIORITY_MAX: Final = 9


class RabbitMqSource:
    """Drains queues. A message is acknowledged at RabbitMQ once tenantq has stored it. If the connection is lost, it returns to its queue."""

    kind = "rabbitmq"
    modes: tuple[Mode, ...] = ("drain",)

    def __init__(self, url: str, names: tuple[str, ...]) -> None:
        """Connect. Raises Invalid or Unavailable."""
        try:
            import pika  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise Invalid(
                "migrate-from rabbitmq requires pika: run pip install '.[rabbitmq]' in the checkout"
            ) from error
        if not names:
            raise Invalid("queues: name the RabbitMQ queues to migrate")
        self.problems: dict[str, int] = {}
        self._names, self._error = names, pika.exceptions.AMQPError
        try:
            self._connection: Any = pika.BlockingConnection(pika.URLParameters(url))
            self._channel: Any = self._connection.channel()
        except (ValueError, TypeError) as error:
            raise Invalid(f"source: not an AMQP URL such as amqp://USER:PASSWORD@HOST:PORT/VHOST ({error})") from error
        except (self._error, OSError) as error:
            raise Unavailable(f"the source RabbitMQ does not answer: {error!r}") from error

    def close(self) -> None:
        """Disconnect. Unacknowledged messages return to their queues."""
        if self._connection.is_open:
            self._connection.close()

    def queues(self) -> list[SourceQueue]:
        """Return the number of ready messages. AMQP does not report others."""
        try:
            return [
                SourceQueue(name=name, ready=self._channel.queue_declare(name, passive=True).method.message_count)
                for name in self._names
            ]
        except self._error as error:
            raise Unavailable(f"the source RabbitMQ: {error!r}") from error

    def batches(self, mode: Mode, in_progress: InProgress) -> Iterator[SourceBatch]:  # noqa: ARG002  # others' deliveries are theirs
        """Yield messages until every queue is empty."""
        for name in self._names:
            while True:
                messages: list[SourceMessage] = []
                tag = 0
                try:
                    while len(messages) < BATCH_MESSAGES:
                        method, properties, body = self._channel.basic_get(name)
                        if method is None:
                            break
                        tag = method.delivery_tag
                        messages.append(_message(name, properties, body))
                except self._error as error:
                    raise Unavailable(f"the source RabbitMQ: {error!r}") from error
                if not messages:
                    break
                yield SourceBatch(messages=messages, done=lambda: self._ack(tag))  # noqa: B023

    def _ack(self, tag: int) -> None:
        try:
            self._channel.basic_ack(tag, multiple=True)
            self._connection.process_data_events()
        except self._error as error:
            raise Unavailable(f"the source RabbitMQ: {error!r}") from error


def _message(queue: str, properties: Any, body: bytes) -> SourceMessage:
    headers = {
        f"header-{name}": value for name, value in (properties.headers or {}).items() if isinstance(value, str | int)
    }
    facts = {
        "content-type": properties.content_type,
        "correlation-id": properties.correlation_id,
        "type": properties.type,
    }
    added_at = int(properties.timestamp) * 1_000 if properties.timestamp else None
    key = properties.message_id or secrets.token_hex(16)  # without an id, equal messages cannot be distinguished
    return SourceMessage(
        key=key,
        queue=queue,
        body=body,
        attributes=text_attributes({**headers, **facts}),
        added_at=added_at,
        priority=min(_PRIORITY_MAX, properties.priority or 0),
    )
