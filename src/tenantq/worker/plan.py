"""The configuration of one run of a worker."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tenantq.client.received import Received
from tenantq.runtime.randomness import Randomness
from tenantq.worker.task import Task

Before = Callable[[Received], Awaitable[None] | None]
After = Callable[[Received, Any], Awaitable[None] | None]
Failure = Callable[[Received, BaseException], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """The configuration of one run, fixed when the worker starts."""

    tasks: list[Task[Any, Any]]
    concurrency: int
    prefetch: int
    fleet: bool
    tenants: list[str] | None
    lease_ms: int
    wait_ms: int
    drain_ms: int
    before: list[Before]
    after: list[After]
    failure: list[Failure]
    randomness: Randomness
