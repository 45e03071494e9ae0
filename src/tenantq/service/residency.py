"""Residency: refuses to add, deliver or import messages of tenants that do not allow this shard's region."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenantq.errors import Conflict

if TYPE_CHECKING:
    from tenantq.engine.shard import Shard

MOVES_CONTENTS: Final = frozenset(("add", "poll", "import"))
"""Actions that are refused on a shard whose region the tenant does not allow."""


class Residency:
    """Knows the misplaced tenants: the region of their shard was changed."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.misplaced: frozenset[str] = frozenset()  # those that did not allow this shard's region when it started

    def mind_regions(self) -> None:
        """Start to refuse contents of tenants that do not allow this shard's region."""
        self.misplaced = frozenset(self._shard.state.catalog.tenants)
        self.misplaced = frozenset(self.misplaced_now())

    def misplaced_now(self) -> list[str]:
        """Return the misplaced tenants. None is added while the server runs, because such a change is refused."""
        return [name for name in self.misplaced if self._is_misplaced(name)]

    def check(self, tenant: str) -> None:
        """Raise Conflict for a misplaced tenant."""
        if tenant in self.misplaced and self._is_misplaced(tenant):
            raise Conflict(
                f"the tenant does not allow the region of its shard, which is {self._shard.settings.region or 'none'}: "
                "change its regions, or move it to another server with tenantq migrate",
                tenant=tenant,
            )

    def _is_misplaced(self, tenant: str) -> bool:
        state = self._shard.state.catalog.tenants.get(tenant)
        regions = state.config.regions if state is not None else ()
        return bool(regions) and self._shard.settings.region not in regions
