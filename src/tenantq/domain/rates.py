"""Rate limits and concurrency limits of tenants and queues."""

from typing import Annotated, Any, ClassVar, Final

import msgspec

from tenantq.domain.schema_rules import at_least_one, given
from tenantq.domain.validation import between
from tenantq.errors import Invalid

OPS_PER_SEC_MAX: Final = 1_000_000_000
BYTES_PER_SEC_MAX: Final = 1 << 40
CONCURRENCY_MAX: Final = 100_000


class Rate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sustained rate limit. None means no limit."""

    json_rules: ClassVar[Any] = at_least_one({"properties": {"burst": {"type": "null"}}}, given("ops_per_sec"))
    ops_per_sec: (
        Annotated[int, between(1, OPS_PER_SEC_MAX, "Messages, or calls without messages, per second.")] | None
    ) = None
    bytes_per_sec: (
        Annotated[int, between(1, BYTES_PER_SEC_MAX, "Bytes of bodies per second, also the burst.")] | None
    ) = None
    burst: Annotated[int, between(1, OPS_PER_SEC_MAX, "Operations at once. Default: ops_per_sec.")] | None = None

    def __post_init__(self) -> None:
        """Refuse a burst without a rate."""
        if self.burst is not None and self.ops_per_sec is None:
            raise Invalid("burst: requires ops_per_sec")

    @property
    def ops_burst(self) -> int:
        """The most operations at once."""
        return self.burst or self.ops_per_sec or 0


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rate limits of a tenant or a queue. Writing and reading are limited separately."""

    write: Rate = Rate()
    read: Rate = Rate()


class Concurrency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a tenant's work may be in flight at one time. More work waits for its turn."""

    requests: Annotated[int, between(1, CONCURRENCY_MAX, "Requests of the tenant.")] = 1_000
    adds: Annotated[int, between(1, CONCURRENCY_MAX, "Adds to one queue.")] = 256
    polls: Annotated[int, between(1, CONCURRENCY_MAX, "Polls of one queue.")] = 256


NO_LIMITS: Final = Limits()
