"""What a queue has for clients of Amazon SQS alone: attributes that tenantq itself does not go by."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from tenantq.domain.message import check_int, check_text
from tenantq.errors import Invalid

MESSAGE_BYTES_MAX: Final = 1 << 20
TAGS_MAX: Final = 50
TAG_NAME_CHARS_MAX: Final = 128
TAG_VALUE_CHARS_MAX: Final = 256
TEXT_CHARS_MAX: Final = 32 << 10


class SqsQueue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Attributes of a queue over Amazon SQS; times in seconds, as there."""

    delay_s: int = 0  # where a message names no delay
    wait_s: int = 0  # where a receive names no wait
    message_bytes_max: int = MESSAGE_BYTES_MAX
    visible_at_once: bool = False  # a visibility timeout of 0, which no lease can have
    content_based_deduplication: bool = False
    deduplication_scope: Literal["queue", "messageGroup"] = "queue"
    throughput_limit: Literal["perQueue", "perMessageGroupId"] = "perQueue"
    policy: str = ""  # kept, not gone by
    redrive_allow_policy: str = ""
    kms_key: str = ""  # kept, not gone by
    kms_reuse_s: int = 300  # kept, not gone by
    managed_sse: bool = True  # kept, not gone by
    created_at: int = 0
    modified_at: int = 0


SQS_RANGES: Final[dict[str, tuple[int, int]]] = {
    "delay_s": (0, 900),
    "wait_s": (0, 20),
    "message_bytes_max": (1_024, MESSAGE_BYTES_MAX),
    "kms_reuse_s": (60, 86_400),
    "created_at": (0, 1 << 40),
    "modified_at": (0, 1 << 40),
}


def check_sqs_queue(queue: SqsQueue) -> SqsQueue:
    """Return ``queue`` if each attribute is in its range, else raise Invalid naming it."""
    for field, (low, high) in SQS_RANGES.items():
        check_int(f"sqs.{field}", getattr(queue, field), low, high)
    for field in ("policy", "redrive_allow_policy", "kms_key"):
        if len(getattr(queue, field)) > TEXT_CHARS_MAX:
            raise Invalid(f"sqs.{field}: is longer than {TEXT_CHARS_MAX} characters")
    return queue


def check_tags(tags: object) -> dict[str, str]:
    """Return the tags of a queue if they are well formed, else raise Invalid."""
    if not isinstance(tags, dict) or len(tags) > TAGS_MAX:
        raise Invalid(f"tags: must be a mapping of at most {TAGS_MAX} names to texts")
    for name, value in tags.items():
        check_text("tags: a name", name, TAG_NAME_CHARS_MAX)
        if type(value) is not str or len(value) > TAG_VALUE_CHARS_MAX:
            raise Invalid(f"tags: the value of one is text of at most {TAG_VALUE_CHARS_MAX} characters")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Invalid("tags: one is not valid Unicode text (a lone surrogate)") from error
    return dict(tags)
