"""What moves between shards: a whole tenant, or a group of queues of a spread tenant."""

from tenantq.domain.message import SYSTEM
from tenantq.engine.operation import Operation
from tenantq.engine.ops.move import (
    FenceQueues,
    FenceTenant,
    check_group_movable,
    check_movable,
)
from tenantq.engine.queue_groups import group_of
from tenantq.engine.queue_state import TenantState
from tenantq.engine.shard import Shard
from tenantq.engine.tenant_rows import META_KINDS, QUEUE_META_KINDS, GroupCapture, RowCapture, TenantCapture
from tenantq.store.keys import QUEUE_FAMILIES, tenant_prefix


class MovingTenant:
    """A whole tenant that moves."""

    def __init__(self, shard: Shard, tenant: TenantState) -> None:
        self._shard, self._tenant = shard, tenant

    def check(self) -> None:
        """Raise Conflict if it cannot move now."""
        check_movable(self._tenant)

    def capture(self) -> RowCapture:
        """Return what notes the changes of its rows from now on."""
        return TenantCapture(self._tenant.id)

    def ranges(self) -> list[tuple[str, bytes]]:
        """Return the families and prefixes of its rows. The names of queues come first."""
        prefix = tenant_prefix(self._tenant.id)
        return [*(("meta", kind + prefix) for kind in META_KINDS), *((family, prefix) for family in QUEUE_FAMILIES)]

    def fence(self, target: int) -> Operation[None]:
        """Return what stops serving it."""
        return FenceTenant(self._tenant, SYSTEM, target)

    def key_ids(self) -> list[str]:
        """Return its API keys."""
        return list(self._shard.state.access.keys(self._tenant.id))


class MovingGroup:
    """A group of queues of a spread tenant that moves."""

    def __init__(self, shard: Shard, tenant: TenantState, unit: str) -> None:
        self._shard, self._tenant, self._unit = shard, tenant, unit

    def check(self) -> None:
        """Raise Conflict if it cannot move now."""
        check_group_movable(self._tenant, group_of(self._tenant, self._unit))

    def capture(self) -> RowCapture:
        """Return what notes the changes of its rows from now on, also of queues that are created from now on."""
        queues = group_of(self._tenant, self._unit)
        return GroupCapture(self._tenant.id, self._unit, [queue.prefix for queue in queues])

    def ranges(self) -> list[tuple[str, bytes]]:
        """Return the families and prefixes of its rows. The names of all queues come first."""
        prefixes = [queue.prefix for queue in group_of(self._tenant, self._unit)]
        meta = [("meta", kind + prefix) for kind in QUEUE_META_KINDS for prefix in prefixes]
        return [*meta, *((family, prefix) for prefix in prefixes for family in QUEUE_FAMILIES)]

    def fence(self, target: int) -> Operation[None]:
        """Return what stops serving it."""
        return FenceQueues(self._tenant, SYSTEM, self._unit, target)

    def key_ids(self) -> list[str]:
        """Return no API keys: they belong to the tenant."""
        return []
