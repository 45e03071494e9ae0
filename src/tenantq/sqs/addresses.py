"""Account numbers, queue URLs and ARNs of Amazon SQS."""

import re
from typing import Final
from urllib.parse import unquote

import msgspec

from tenantq.domain.names import QUEUE_CHARS_MAX
from tenantq.sqs.failures import INVALID_ADDRESS, NO_SUCH_QUEUE, SqsFailure, invalid

_ACCOUNT: Final = re.compile(r"[0-9]{12}")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}(?:\.fifo)?")
_ARN_PARTS: Final = 6


class QueueAddress(msgspec.Struct, frozen=True):
    """The tenant number and name of a queue. Number 0 or None means the caller's own tenant."""

    number: int | None
    name: str


def account_of(tenant_id: int) -> str:
    """Return the 12-digit account number of a tenant."""
    return f"{tenant_id:012d}"


def number_of(account: str) -> int | None:
    """Return the tenant number of a 12-digit account, or None if it is not one."""
    return int(account) if _ACCOUNT.fullmatch(account) is not None else None


def is_queue_name(name: str) -> bool:
    """Return whether this is a valid queue name."""
    return len(name) <= QUEUE_CHARS_MAX and _NAME.fullmatch(name) is not None


def parse_queue_url(url: str) -> QueueAddress:
    """Return the queue of a URL. The host is ignored, because it may be a load balancer. A bare name is the caller's own queue."""
    address, slashes, rest = url.partition("://")
    if not slashes:
        address, rest = "", url
    elif address.lower() not in {"http", "https"}:
        raise SqsFailure(INVALID_ADDRESS, f"The address {url[:200]} is not valid for this endpoint.")
    *_, account, name = ["", "", *unquote(rest).rstrip("/").split("/")]
    if not slashes and not is_queue_name(name):
        raise SqsFailure(INVALID_ADDRESS, f"The address {url[:200]} is not valid for this endpoint.")
    number = number_of(account)
    if not is_queue_name(name) or (number is None and (slashes or account)):
        raise SqsFailure(NO_SUCH_QUEUE, "The specified queue does not exist.")
    return QueueAddress(number, name)


def queue_arn(region: str, tenant_id: int, name: str) -> str:
    """Return the ARN of a queue."""
    return f"arn:aws:sqs:{region}:{account_of(tenant_id)}:{name}"


def parse_queue_arn(arn: str) -> QueueAddress:
    """Return the queue of an ARN. The region is ignored."""
    parts = arn.split(":")
    if len(parts) == _ARN_PARTS and parts[0] == "arn" and parts[2] == "sqs":
        number = number_of(parts[4])
        if number is not None and is_queue_name(parts[5]):
            return QueueAddress(number, parts[5])
    raise invalid(f"You must use this format to specify the queue ARN: {_ARN_FORMAT}")


_ARN_FORMAT: Final = "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
