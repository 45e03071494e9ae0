"""Batches: up to ten entries, each with its own ID and outcome."""

import re
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from tenantq.errors import TenantqError
from tenantq.sqs import failures
from tenantq.sqs.failures import SqsFailure, failure_of
from tenantq.sqs.requests import Parameters

ENTRIES_MAX: Final = 10
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")


_E = TypeVar("_E", bound=Parameters)


def check_entries(entries: Sequence[_E] | None, kind: str) -> Sequence[_E]:
    """Return the entries of a batch. Raises SqsFailure if the batch as a whole is invalid."""
    if not entries:
        raise SqsFailure(failures.EMPTY_BATCH, f"There should be at least one {kind} in the request.")
    if len(entries) > ENTRIES_MAX:
        raise SqsFailure(
            failures.TOO_MANY_ENTRIES,
            f"Maximum number of entries per request are {ENTRIES_MAX}. You have sent {len(entries)}.",
        )
    seen: set[str] = set()
    for entry in entries:
        id = entry.id or ""
        if _ID.fullmatch(id) is None:
            raise SqsFailure(
                failures.INVALID_BATCH_ID,
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long.",
            )
        if id in seen:
            raise SqsFailure(failures.BATCH_IDS_NOT_DISTINCT, f"Id {id} repeated.")
        seen.add(id)
    return entries


def outcomes(entries: Sequence[Parameters], done: Sequence[dict[str, Any] | TenantqError]) -> dict[str, Any]:
    """Return the successful and the failed entries of a batch. An empty list is omitted."""
    successful: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for entry, one in zip(entries, done, strict=True):
        if isinstance(one, dict):
            successful.append({"Id": entry.id, **one})
            continue
        failure = failure_of(one)
        facts = {"SenderFault": failure.kind.sender_fault, "Code": failure.kind.code, "Message": failure.message}
        failed.append({"Id": entry.id, **facts})
    return {name: found for name, found in (("Successful", successful), ("Failed", failed)) if found}
