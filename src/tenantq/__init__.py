"""tenantq: a durable work queue for software that serves many tenants."""

from tenantq.clock import ManualClock, SystemClock
from tenantq.config import QueueConfig, ShardSettings, TenantConfig
from tenantq.engine.ops.redrive import RedriveFilter
from tenantq.engine.shard import Shard
from tenantq.errors import (
    Busy,
    Closed,
    Conflict,
    DiskFull,
    Draining,
    Invalid,
    LeaseLost,
    NotFound,
    StoreDamaged,
    StoreFailed,
    StoreFormat,
    StoreLocked,
    TenantqError,
    TooLarge,
    Unavailable,
)
from tenantq.message import Added, Caller, Delivery, NewMessage, Outcome, Result

__all__ = [
    "Added",
    "Busy",
    "Caller",
    "Closed",
    "Conflict",
    "Delivery",
    "DiskFull",
    "Draining",
    "Invalid",
    "LeaseLost",
    "ManualClock",
    "NewMessage",
    "NotFound",
    "Outcome",
    "QueueConfig",
    "RedriveFilter",
    "Result",
    "Shard",
    "ShardSettings",
    "StoreDamaged",
    "StoreFailed",
    "StoreFormat",
    "StoreLocked",
    "SystemClock",
    "TenantConfig",
    "TenantqError",
    "TooLarge",
    "Unavailable",
]
