"""Settings of the Amazon SQS endpoint."""

from typing import Annotated

import msgspec

from tenantq.domain.validation import about, between

_CooldownMs = Annotated[int, between(0, 3_600_000)]


class SqsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the HTTP listener also serves Amazon SQS, and the cooldowns that its clients expect."""

    enabled: Annotated[bool, about("Serve Amazon SQS.")] = True
    purge_pause_ms: Annotated[_CooldownMs, about("Between two purges of one queue.")] = 60_000
    recreate_pause_ms: Annotated[_CooldownMs, about("Between deleting a queue and creating it again.")] = 60_000
