"""What restricts a tenant or a queue: a legal hold, a suspension, a deletion that has begun."""

from typing import Literal

import msgspec

from tenantq.journal.erasure_certificate import DestroyedKey

SuspensionMode = Literal["settle", "freeze", "fill"]


class Hold(msgspec.Struct, frozen=True):
    """A legal hold: its reason, who placed it, and when."""

    reason: str
    by: str  # principal
    at: int  # wall clock


class Suspension(msgspec.Struct, frozen=True):
    """Why a tenant or a queue refuses adds and polls, and what it still allows.

    settle: leased messages may be settled, and leases and lifetimes end as usual.
    freeze: nothing changes, and every export is the same; leases are lost.
    fill: parts of exports are imported.
    """

    mode: SuspensionMode
    reason: str
    by: str  # principal
    at: int  # wall clock
    seq: int  # the journal record that reports it
    engine_ms: int  # the shard's own time


class Erasing(msgspec.Struct, frozen=True):
    """A deletion that has begun: its reason, who asked for it, and the data keys that it destroyed."""

    reason: str
    by: str  # principal
    data_keys: tuple[DestroyedKey, ...]
