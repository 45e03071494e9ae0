"""The items of a batch, counted while they are read: a request that has too many is refused at the first too many.

A few kilobytes, once inflated, can hold millions of empty items. To make objects of them all would take gigabytes, and seconds in which
nobody else is served.
"""

from __future__ import annotations

from typing import Final

from tenantq.domain.limits import BATCH_MESSAGES_MAX
from tenantq.wire import (
    AckRequest,
    AddRequest,
    ExportedKey,
    ExportedMessage,
    ExportedResult,
    ImportRequest,
    WireMessage,
    WireResult,
)


class _Reading:
    """How many items may still be read of the request that is decoded just now: the event loop decodes one at a time."""

    __slots__ = ("left",)
    left: int


_reading: Final = _Reading()


def begin_reading() -> None:
    """Count from the start. To be called before each request is decoded."""
    _reading.left = BATCH_MESSAGES_MAX


class _Counted:
    __slots__ = ()

    def __post_init__(self) -> None:
        _reading.left -= 1
        if _reading.left < 0:
            raise ValueError(f"is one too many: allowed are 1 to {BATCH_MESSAGES_MAX} in one batch")


class _Message(_Counted, WireMessage, frozen=True, kw_only=True, gc=False): ...


class CountedAdd(AddRequest, frozen=True, kw_only=True):
    """Messages to add."""

    messages: list[_Message]  # type: ignore[assignment]  # nobody puts others into it


class _Result(_Counted, WireResult, frozen=True, kw_only=True, gc=False): ...


class CountedAck(AckRequest, frozen=True, kw_only=True):
    """Messages to finish, with results."""

    results: list[_Result | None] | None = None  # type: ignore[assignment]  # likewise


class _ExportedMessage(_Counted, ExportedMessage, frozen=True, kw_only=True): ...


class _ExportedResult(_Counted, ExportedResult, frozen=True, kw_only=True): ...


class _ExportedKey(_Counted, ExportedKey, frozen=True, kw_only=True): ...


class CountedImport(ImportRequest, frozen=True, kw_only=True):
    """One part of an export."""

    messages: list[_ExportedMessage] = []  # type: ignore[assignment]  # noqa: RUF012  # likewise; msgspec gives every object a list of its own
    results: list[_ExportedResult] = []  # type: ignore[assignment]  # noqa: RUF012  # likewise
    idempotency: list[_ExportedKey] = []  # type: ignore[assignment]  # noqa: RUF012  # likewise
