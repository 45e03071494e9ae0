"""Amazon SQS, or anything that speaks its protocol: drained with leases."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tenantq.errors import Invalid, Unavailable
from tenantq.sources.source import BATCH_MESSAGES, InProgress, Mode, SourceBatch, SourceMessage, SourceQueue

_EMPTY_POLLS: Final = 3  # SQS may return no messages although the queue has some
_PER_CALL: Final = 10


class SqsSource:
    """Drains queues. A message is deleted at SQS once tenantq has stored it. Its lease protects it meanwhile."""

    kind = "sqs"
    modes: tuple[Mode, ...] = ("drain",)

    def __init__(
        self, names: tuple[str, ...], endpoint: str | None = None, region: str | None = None, lease_s: int = 300
    ) -> None:
        """Find the queues by name or URL; credentials come from the usual AWS sources. Raises Invalid or Unavailable."""
        try:
            import boto3  # noqa: PLC0415  # an extra
            from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
        except ImportError as error:
            raise Invalid("migrate-from sqs requires boto3: run pip install '.[aws]' in the checkout") from error
        if not names:
            raise Invalid("queues: name the SQS queues to migrate, or give their URLs")
        self.problems: dict[str, int] = {}
        self._lease_s = lease_s
        self._errors = (BotoCoreError, ClientError)
        try:
            self._client: Any = boto3.Session().client("sqs", endpoint_url=endpoint, region_name=region)
            self._urls = {name.rpartition("/")[2]: self._url(name) for name in names}
        except self._errors as error:
            raise Unavailable(f"the source SQS: {error}") from error

    def _url(self, name: str) -> str:
        url: str = name if "://" in name else self._client.get_queue_url(QueueName=name)["QueueUrl"]
        return url

    def close(self) -> None:
        """Disconnect."""
        self._client.close()

    def queues(self) -> list[SourceQueue]:
        """Return the approximate counts from SQS."""
        names = {
            "ready": "ApproximateNumberOfMessages",
            "delayed": "ApproximateNumberOfMessagesDelayed",
            "in_progress": "ApproximateNumberOfMessagesNotVisible",
        }
        found = []
        try:
            for name, url in self._urls.items():
                facts = self._client.get_queue_attributes(QueueUrl=url, AttributeNames=list(names.values()))[
                    "Attributes"
                ]
                counts = {state: int(facts[key]) for state, key in names.items()}
                found.append(msgspec.convert({"name": name, **counts}, SourceQueue))
        except self._errors as error:
            raise Unavailable(f"the source SQS: {error}") from error
        return found

    def batches(self, mode: Mode, in_progress: InProgress) -> Iterator[SourceBatch]:  # noqa: ARG002  # others' leases are theirs
        """Yield messages until every queue answers empty. Messages that workers hold or that are delayed stay."""
        for name, url in self._urls.items():
            empty = 0
            while empty < _EMPTY_POLLS:
                received = self._receive(url)
                empty = 0 if received else empty + 1
                if received:
                    messages = [_message(name, one) for one in received]
                    yield SourceBatch(messages=messages, done=lambda: self._delete(url, received))  # noqa: B023

    def _receive(self, url: str) -> list[Any]:
        found: list[Any] = []
        try:
            while len(found) < BATCH_MESSAGES:
                reply = self._client.receive_message(
                    QueueUrl=url, MaxNumberOfMessages=_PER_CALL, VisibilityTimeout=self._lease_s, WaitTimeSeconds=0 if found else 1,
                    AttributeNames=["All"], MessageAttributeNames=["All"],
                )  # fmt: skip
                if not reply.get("Messages"):
                    break
                found += reply["Messages"]
        except self._errors as error:
            raise Unavailable(f"the source SQS: {error}") from error
        return found

    def _delete(self, url: str, received: list[Any]) -> None:
        try:
            for at in range(0, len(received), _PER_CALL):
                entries = [
                    {"Id": str(number), "ReceiptHandle": one["ReceiptHandle"]}
                    for number, one in enumerate(received[at : at + _PER_CALL])
                ]
                reply = self._client.delete_message_batch(QueueUrl=url, Entries=entries)
                if reply.get("Failed"):
                    raise Unavailable(f"the source SQS did not delete messages: {reply['Failed'][0].get('Message')}")
        except self._errors as error:
            raise Unavailable(f"the source SQS: {error}") from error


def _message(queue: str, one: Any) -> SourceMessage:
    facts = one.get("Attributes", {})
    attributes = {
        name: value["StringValue"] for name, value in one.get("MessageAttributes", {}).items() if "StringValue" in value
    }
    sent = facts.get("SentTimestamp")
    return SourceMessage(
        key=one["MessageId"],
        queue=queue,
        body=one["Body"].encode(),
        attributes=attributes,
        added_at=int(sent) if sent else None,
        group=facts.get("MessageGroupId"),
    )
