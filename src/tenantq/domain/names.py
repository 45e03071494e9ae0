"""Names of tenants, queues, shards and regions."""

import re
import zlib
from typing import Annotated, Final

from tenantq.domain.validation import check_field, matching

_TENANT: Final = "[a-z0-9][a-z0-9-]{1,30}[a-z0-9]"
_TENANT_IN_WORDS: Final = "3 to 32 characters of a-z, 0-9 and '-', with a letter or digit at both ends"
TenantName = Annotated[str, matching(_TENANT, _TENANT_IN_WORDS)]
OptionalTenantName = Annotated[str, matching(f"(?:{_TENANT})?", f"empty, or {_TENANT_IN_WORDS}")]
TenantNameOrAll = Annotated[str, matching(rf"\*|{_TENANT}", f"'*', or {_TENANT_IN_WORDS}")]
_QUEUE: Final = r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo"
QueueName = Annotated[
    str, matching(_QUEUE, "1 to 80 characters of A-Z, a-z, 0-9, '_' and '-', optionally ending in '.fifo'")
]
QueuePattern = Annotated[
    str, matching("[A-Za-z0-9_.*?-]{1,80}", "1 to 80 characters of A-Z, a-z, 0-9, '_', '-', '.', '*' and '?'")
]
ShardName = Annotated[
    str,
    matching(
        "[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?",
        "1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-', with a letter or digit at both ends",
    ),
]
_REGION: Final = "[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?"
_REGION_IN_WORDS: Final = "1 to 32 characters of a-z, 0-9 and '-', with a letter or digit at both ends"
RegionName = Annotated[str, matching(_REGION, _REGION_IN_WORDS)]
OptionalRegionName = Annotated[str, matching(f"(?:{_REGION})?", f"empty, or {_REGION_IN_WORDS}")]

PlanName = Annotated[str, matching(_REGION, _REGION_IN_WORDS)]
TemplateName = Annotated[str, matching(_REGION, _REGION_IN_WORDS)]
TargetName = Annotated[str, matching(_REGION, _REGION_IN_WORDS)]  # of alerts

DEFAULT_TENANT: Final = "default"
PROBE_TENANTS: Final = ("tenantq-probe-a", "tenantq-probe-b")  # the server's own, to probe the isolation of tenants
FIFO_SUFFIX: Final = ".fifo"
QUEUE_CHARS_MAX: Final = 80
_is_queue_name = re.compile(_QUEUE).fullmatch


def check_tenant_name(name: object) -> str:
    """Return ``name`` if it is a valid tenant name. Raises Invalid otherwise."""
    return check_field("tenant", name, TenantName)  # type: ignore[no-any-return]  # text, as just checked


def check_queue_name(name: object) -> str:
    """Return ``name`` if it is a valid queue name. Raises Invalid otherwise."""
    if type(name) is str and _is_queue_name(name):
        return name  # every call of every queue passes here
    return check_field("queue", name, QueueName)  # type: ignore[no-any-return]  # text, as just checked


def dead_letter_name(queue: str) -> str:
    """Return the default name of a queue's dead-letter queue.

    The dead letters of a FIFO queue keep their groups, so their queue is FIFO as well.
    """
    stem, fifo = (queue[: -len(FIFO_SUFFIX)], FIFO_SUFFIX) if queue.endswith(FIFO_SUFFIX) else (queue, "")
    tail = "-dlq" + fifo
    if len(stem) + len(tail) > QUEUE_CHARS_MAX:
        tail = f"-{zlib.crc32(queue.encode()):08x}" + tail  # a name cut short must not be another queue's
    return stem[: QUEUE_CHARS_MAX - len(tail)] + tail
