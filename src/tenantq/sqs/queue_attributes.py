"""Attributes of queues, and their mapping to tenantq's settings."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from tenantq.domain.config import QueueConfig, SqsQueue
from tenantq.domain.limits import ATTEMPTS_MAX
from tenantq.domain.message import QueueStats
from tenantq.domain.names import FIFO_SUFFIX, dead_letter_name
from tenantq.service.sqs_lookup import FoundQueue
from tenantq.sqs.addresses import QueueAddress, parse_queue_arn, queue_arn
from tenantq.sqs.failures import INVALID_ATTRIBUTE_NAME, INVALID_ATTRIBUTE_VALUE, SqsFailure, invalid_value

_AttributeParser = Callable[[str, str], Any]  # the name and text of an attribute; returns its value

DEDUPLICATION_MS: Final = 300_000
RETENTION_S_DEFAULT: Final = 345_600
RETENTION_S_MAX: Final = 1_209_600
SOURCES_MAX: Final = 10
VISIBILITY_S_DEFAULT: Final = 30
VISIBILITY_S_MAX: Final = 43_200

NEW_QUEUE: Final[dict[str, Any]] = {
    "lease_ms": VISIBILITY_S_DEFAULT * 1_000,
    "max_attempts": 0,
    "ttl_ms": RETENTION_S_DEFAULT * 1_000,
    "dedup_ms": DEDUPLICATION_MS,
    "dead_letter": None,
    "dead_on_poll": True,
}
"""Default settings of a queue created over Amazon SQS."""

FIGURES: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)
_FIFO_ONLY: Final = frozenset(("ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit"))
_READ_ONLY: Final = frozenset((*FIGURES, "QueueArn", "CreatedTimestamp", "LastModifiedTimestamp"))
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,12}")

_decode_map = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class RedrivePolicy(msgspec.Struct, frozen=True):
    """The dead-letter queue, and the maximum number of deliveries."""

    target: QueueAddress
    max_receives: int


class AttributeChanges(msgspec.Struct, frozen=True):
    """The settings that SQS attributes translate to."""

    settings: dict[str, Any]  # of tenantq
    sqs: dict[str, Any]
    redrive: RedrivePolicy | None = None  # its target is not checked yet


# ---- setting ----


def read_attributes(given: Mapping[str, str], *, fifo: bool) -> AttributeChanges:
    """Return the settings for SQS attributes. Raises SqsFailure if one is invalid."""
    settings: dict[str, Any] = {}
    sqs: dict[str, Any] = {}
    redrive = None
    for name, text in given.items():
        if name == "FifoQueue":
            if not fifo:
                raise unknown(name)
            if text.lower() != "true":
                raise _bad(name, " Reason: Modifying queue type is not supported.")
        elif name == "RedrivePolicy":
            redrive = _redrive_policy(text) if text else None
            if redrive is None:
                settings.update(max_attempts=0, dead_letter=None)
            else:
                settings.update(max_attempts=redrive.max_receives, dead_letter=redrive.target.name)
        elif name == "VisibilityTimeout":
            seconds = _number(name, text, 0, VISIBILITY_S_MAX)
            settings["lease_ms"] = max(1, seconds) * 1_000
            sqs["visible_at_once"] = seconds == 0
        elif name == "MessageRetentionPeriod":
            settings["ttl_ms"] = _number(name, text, 60, RETENTION_S_MAX) * 1_000
        elif name not in _READERS or (name in _FIFO_ONLY and not fifo):
            if name in {"DeduplicationScope", "FifoThroughputLimit"}:
                problem = f"You can specify the {name} only when FifoQueue is set to true."
                raise SqsFailure(INVALID_ATTRIBUTE_NAME, problem)
            raise unknown(name)
        else:
            field, read = _READERS[name]
            sqs[field] = read(name, text)
    if sqs.get("kms_key"):
        sqs["managed_sse"] = False
    if given.get("KmsMasterKeyId") and given.get("SqsManagedSseEnabled", "").lower() == "true":
        raise SqsFailure(
            INVALID_ATTRIBUTE_NAME,
            "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.",
        )
    return AttributeChanges(settings, sqs, redrive)


def unknown(name: str) -> SqsFailure:
    """Return the error for an unknown attribute."""
    return SqsFailure(INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name[:80]}.")


def _bad(name: str, why: str = "") -> SqsFailure:
    return SqsFailure(INVALID_ATTRIBUTE_VALUE, f"Invalid value for the parameter {name}.{why}")


def _number(name: str, text: str, low: int, high: int) -> int:
    if _INTEGER.fullmatch(text) is None or not low <= int(text) <= high:
        raise _bad(name)
    return int(text)


def _integer(low: int, high: int) -> _AttributeParser:
    return lambda name, text: _number(name, text, low, high)


def _choice(*choices: str) -> _AttributeParser:
    def read(name: str, text: str) -> str:
        if text not in choices:
            raise _bad(name)
        return text

    return read


def _truth(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise _bad(name)
    return text.lower() == "true"


def _json(name: str, text: str) -> str:
    if text:
        try:
            _decode_map(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _bad(name) from error
    return text


def _redrive_allow(name: str, text: str) -> str:
    if text:
        _allowed_sources(name, text)
    return text


def _allowed_sources(name: str, text: str) -> frozenset[QueueAddress] | None:
    """Return the source queues that a policy allows, None for all. Raises SqsFailure if it is invalid."""
    try:
        given = _decode_map(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid_value(name, text, "It is not a valid JSON map.") from error
    permission, sources = given.get("redrivePermission"), given.get("sourceQueueArns")
    if permission not in {"allowAll", "denyAll", "byQueue"}:
        raise invalid_value(name, text, "redrivePermission must be allowAll, denyAll or byQueue.")
    if permission != "byQueue":
        if sources is not None:
            raise invalid_value(name, text, "sourceQueueArns is for the redrivePermission byQueue only.")
        return None if permission == "allowAll" else frozenset()
    if not isinstance(sources, list) or not 1 <= len(sources) <= SOURCES_MAX:
        raise invalid_value(name, text, f"byQueue needs sourceQueueArns with 1 to {SOURCES_MAX} ARNs.")
    try:
        return frozenset(parse_queue_arn(str(source)) for source in sources)
    except SqsFailure as error:
        raise invalid_value(name, text, "An element of sourceQueueArns is not the ARN of a queue.") from error


def accepts_dead_letters(target: FoundQueue, source: str) -> bool:
    """Return whether a queue accepts the dead letters of another queue of its tenant."""
    text = (target.config.sqs or SqsQueue()).redrive_allow_policy
    if not text:
        return True
    try:
        sources = _allowed_sources("RedriveAllowPolicy", text)
    except SqsFailure:
        return False  # set over another interface, and unknown: deny
    return sources is None or any(one.name == source and one.number in {0, target.tenant_id} for one in sources)


def check_throughput(changes: AttributeChanges, before: SqsQueue) -> None:
    """Raise SqsFailure if a throughput limit per group is combined with deduplication per queue."""
    limit = changes.sqs.get("throughput_limit", before.throughput_limit)
    scope = changes.sqs.get("deduplication_scope", before.deduplication_scope)
    if limit == "perMessageGroupId" and scope != "messageGroup":
        problem = "perMessageGroupId is allowed only where DeduplicationScope is messageGroup."
        raise _bad("FifoThroughputLimit", f" Reason: {problem}")


_READERS: Final[dict[str, tuple[str, _AttributeParser]]] = {
    "DelaySeconds": ("delay_s", _integer(0, 900)),
    "MaximumMessageSize": ("message_bytes_max", _integer(1_024, 1 << 20)),
    "ReceiveMessageWaitTimeSeconds": ("wait_s", _integer(0, 20)),
    "ContentBasedDeduplication": ("content_based_deduplication", _truth),
    "DeduplicationScope": ("deduplication_scope", _choice("queue", "messageGroup")),
    "FifoThroughputLimit": ("throughput_limit", _choice("perQueue", "perMessageGroupId")),
    "Policy": ("policy", _json),
    "RedriveAllowPolicy": ("redrive_allow_policy", _redrive_allow),
    "KmsMasterKeyId": ("kms_key", lambda _, text: text),
    "KmsDataKeyReusePeriodSeconds": ("kms_reuse_s", _integer(60, 86_400)),
    "SqsManagedSseEnabled": ("managed_sse", _truth),
}
"""Attributes that are stored as they are: the field of ``SqsQueue``, and the function that reads the text."""
_KNOWN: Final = (
    _READ_ONLY | _READERS.keys() | {"VisibilityTimeout", "MessageRetentionPeriod", "RedrivePolicy", "FifoQueue"}
)


def _redrive_policy(text: str) -> RedrivePolicy:
    try:
        given = _decode_map(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid_value("RedrivePolicy", text, "Redrive policy is not a valid JSON map.") from error
    for name in ("maxReceiveCount", "deadLetterTargetArn"):
        if name not in given:
            raise invalid_value("RedrivePolicy", text, f"Redrive policy does not contain mandatory attribute: {name}.")
    most, target = str(given["maxReceiveCount"]), given["deadLetterTargetArn"]
    if _INTEGER.fullmatch(most) is None or not 1 <= int(most) <= ATTEMPTS_MAX:
        raise invalid_value(
            "RedrivePolicy", text,
            f"Invalid value for maxReceiveCount: {most[:20]}, valid values are from 1 to {ATTEMPTS_MAX} both inclusive.",
        )  # fmt: skip
    try:
        return RedrivePolicy(parse_queue_arn(str(target)), int(most))
    except SqsFailure as error:
        raise invalid_value("RedrivePolicy", text, "Invalid value for deadLetterTargetArn.") from error


# ---- getting ----


def shown_attributes(queue: FoundQueue, region: str, stats: QueueStats | None) -> dict[str, str]:
    """Return all attributes of a queue, with its message counts if ``stats`` is given."""
    config = queue.config
    sqs = config.sqs or SqsQueue()
    shown = {
        "QueueArn": queue_arn(region, queue.tenant_id, queue.name),
        "CreatedTimestamp": str(sqs.created_at),
        "LastModifiedTimestamp": str(sqs.modified_at or sqs.created_at),
        "VisibilityTimeout": "0" if sqs.visible_at_once else str(config.lease_ms // 1_000),
        "MaximumMessageSize": str(sqs.message_bytes_max),
        "MessageRetentionPeriod": str(_retention_s(config)),
        "DelaySeconds": str(sqs.delay_s),
        "ReceiveMessageWaitTimeSeconds": str(sqs.wait_s),
        "SqsManagedSseEnabled": _truth_text(sqs.managed_sse),
    }
    if stats is not None:
        figures = (stats.ready, stats.in_flight, stats.delayed)
        shown.update({name: str(figure) for name, figure in zip(FIGURES, figures, strict=True)})
    if config.max_attempts:
        target = config.dead_letter or dead_letter_name(queue.name)
        arn = queue_arn(region, queue.tenant_id, target)
        policy = {"deadLetterTargetArn": arn, "maxReceiveCount": config.max_attempts}
        shown["RedrivePolicy"] = _encode(policy).decode()
    policies = {"Policy": sqs.policy, "RedriveAllowPolicy": sqs.redrive_allow_policy}
    shown |= {name: text for name, text in policies.items() if text}
    if sqs.kms_key:
        shown |= {"KmsMasterKeyId": sqs.kms_key, "KmsDataKeyReusePeriodSeconds": str(sqs.kms_reuse_s)}
    if queue.name.endswith(FIFO_SUFFIX):
        shown |= {
            "FifoQueue": "true",
            "ContentBasedDeduplication": _truth_text(sqs.content_based_deduplication),
            "DeduplicationScope": sqs.deduplication_scope,
            "FifoThroughputLimit": sqs.throughput_limit,
        }
    return shown


def _retention_s(config: QueueConfig) -> int:
    """Return the retention period, capped at the maximum of Amazon SQS."""
    return min(config.ttl_ms // 1_000, RETENTION_S_MAX) if config.ttl_ms is not None else RETENTION_S_MAX


def _truth_text(value: bool) -> str:  # noqa: FBT001  # its only argument
    return "true" if value else "false"


def chosen(shown: dict[str, str], wanted: list[str]) -> dict[str, str]:
    """Return the attributes asked for by name, or all. Raises SqsFailure for an unknown one."""
    if "All" in wanted:
        return shown
    for name in wanted:
        if name not in _KNOWN:
            raise unknown(name)
    return {name: shown[name] for name in wanted if name in shown}


def first_difference(shown: Mapping[str, str], given: Mapping[str, str]) -> str | None:
    """Return the first attribute that differs from ``given``, or None."""
    for name, text in given.items():
        if not _same(name, shown.get(name, ""), text):
            return name
    return None


def _same(name: str, shown: str, given: str) -> bool:
    if name in {"RedrivePolicy", "Policy", "RedriveAllowPolicy"} and shown and given:
        one, other = _decode_map(shown), _decode_map(given)
        if name == "RedrivePolicy":
            other = {**other, "maxReceiveCount": int(other["maxReceiveCount"])}
        return one == other
    return shown.lower() == given.lower() if given.lower() in {"true", "false"} else shown == given.lstrip("+")
