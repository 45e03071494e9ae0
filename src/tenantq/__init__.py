"""tenantq: a durable work queue for software that serves many tenants.

Names are loaded when they are first used, so that a program that only adds messages never loads the engine.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenantq.client import Added as Added
    from tenantq.client import AsyncClient as AsyncClient
    from tenantq.client import Client as Client
    from tenantq.client import Received as Received
    from tenantq.domain.config import QueueConfig as QueueConfig
    from tenantq.domain.config import TenantConfig as TenantConfig
    from tenantq.domain.message import Caller as Caller
    from tenantq.domain.message import Delivery as Delivery
    from tenantq.domain.message import NewMessage as NewMessage
    from tenantq.domain.message import Outcome as Outcome
    from tenantq.domain.message import Result as Result
    from tenantq.engine.redrive_task import RedriveFilter as RedriveFilter
    from tenantq.engine.settings import ShardSettings as ShardSettings
    from tenantq.engine.shard import Shard as Shard
    from tenantq.errors import BadAnswer as BadAnswer
    from tenantq.errors import Busy as Busy
    from tenantq.errors import Closed as Closed
    from tenantq.errors import Conflict as Conflict
    from tenantq.errors import ConnectionFailed as ConnectionFailed
    from tenantq.errors import DecryptionFailed as DecryptionFailed
    from tenantq.errors import DiskFull as DiskFull
    from tenantq.errors import Draining as Draining
    from tenantq.errors import Erased as Erased
    from tenantq.errors import Forbidden as Forbidden
    from tenantq.errors import Invalid as Invalid
    from tenantq.errors import JournalBehind as JournalBehind
    from tenantq.errors import KeyDisabled as KeyDisabled
    from tenantq.errors import KeySuspended as KeySuspended
    from tenantq.errors import KmsDenied as KmsDenied
    from tenantq.errors import KmsError as KmsError
    from tenantq.errors import KmsUnavailable as KmsUnavailable
    from tenantq.errors import LeaseLost as LeaseLost
    from tenantq.errors import LegalHold as LegalHold
    from tenantq.errors import Limited as Limited
    from tenantq.errors import NotFound as NotFound
    from tenantq.errors import QueueDamaged as QueueDamaged
    from tenantq.errors import QuotaExceeded as QuotaExceeded
    from tenantq.errors import RateLimited as RateLimited
    from tenantq.errors import RowsDamaged as RowsDamaged
    from tenantq.errors import ShardDown as ShardDown
    from tenantq.errors import SignatureRefused as SignatureRefused
    from tenantq.errors import StoreDamaged as StoreDamaged
    from tenantq.errors import StoreFailed as StoreFailed
    from tenantq.errors import StoreFormat as StoreFormat
    from tenantq.errors import StoreLocked as StoreLocked
    from tenantq.errors import Suspended as Suspended
    from tenantq.errors import TenantMoved as TenantMoved
    from tenantq.errors import TenantqError as TenantqError
    from tenantq.errors import TimedOut as TimedOut
    from tenantq.errors import TooLarge as TooLarge
    from tenantq.errors import Unauthenticated as Unauthenticated
    from tenantq.errors import Unavailable as Unavailable
    from tenantq.errors import WrongRegion as WrongRegion
    from tenantq.runtime.clock import ManualClock as ManualClock
    from tenantq.runtime.clock import SystemClock as SystemClock
    from tenantq.worker import Worker as Worker

_HOMES = {
    "tenantq.client": ("Added", "AsyncClient", "Client", "Received"),
    "tenantq.runtime.clock": ("ManualClock", "SystemClock"),
    "tenantq.domain.config": ("QueueConfig", "TenantConfig"),
    "tenantq.engine.settings": ("ShardSettings",),
    "tenantq.engine.redrive_task": ("RedriveFilter",),
    "tenantq.engine.shard": ("Shard",),
    "tenantq.errors": (
        "BadAnswer", "Busy", "Closed", "Conflict", "ConnectionFailed", "DecryptionFailed", "DiskFull", "Draining", "Erased", "Forbidden",
        "Invalid", "JournalBehind", "KeyDisabled", "KeySuspended", "KmsDenied", "KmsError", "KmsUnavailable", "LeaseLost", "LegalHold", "Limited",
        "NotFound",
        "QueueDamaged", "QuotaExceeded", "RateLimited", "RowsDamaged", "ShardDown", "SignatureRefused", "StoreDamaged", "StoreFailed", "StoreFormat",
        "StoreLocked", "Suspended", "TenantMoved", "TenantqError", "TimedOut", "TooLarge", "Unauthenticated", "Unavailable",
        "WrongRegion",
    ),
    "tenantq.domain.message": ("Caller", "Delivery", "NewMessage", "Outcome", "Result"),
    "tenantq.worker": ("Worker",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605  # one list is kept, not two; a test compares it with the imports above


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'tenantq' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
