"""The settings of the Amazon SQS endpoint."""

from __future__ import annotations

from typing import Final

import msgspec

from tenantq.domain.message import check_int

_PAUSE_MS_MAX: Final = 3_600_000


class SqsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether Amazon SQS is spoken on the HTTP listener, and the pauses that its clients know."""

    enabled: bool = True
    purge_pause_ms: int = 60_000  # between two purges of one queue
    recreate_pause_ms: int = 60_000  # between the deletion of a queue and a new one of its name


def check_sqs(settings: SqsSettings) -> SqsSettings:
    """Return ``settings`` if each is in its range, else raise Invalid naming it."""
    check_int("sqs.purge_pause_ms", settings.purge_pause_ms, 0, _PAUSE_MS_MAX)
    check_int("sqs.recreate_pause_ms", settings.recreate_pause_ms, 0, _PAUSE_MS_MAX)
    return settings
