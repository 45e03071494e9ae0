"""Residency: a tenant's contents are read and written only where all places of its data are in regions that it allows.

In a cluster the server that a client calls must be in one of them too: contents pass through it.
"""

from typing import Final

import msgspec

from tenantq.engine.shard import Shard
from tenantq.errors import Conflict, Invalid, WrongRegion

CONTENT_ACTIONS: Final = frozenset(
    (
        *("add", "poll", "ack", "nack", "release", "extend", "redrive", "export", "import"),
        *("peek", "get", "result", "trace", "read_body"),
    )
)
"""Actions that are refused on a shard that keeps data where the tenant does not allow it."""


class DataPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a shard keeps data of its tenants."""

    what: str  # messages, journal segments or backups
    where: str = ""  # a directory or URL, without credentials; empty: where the store is
    region: str = ""  # empty: unknown, which no tenant with regions allows


class Residency:
    """Knows the places of a shard's data, and the tenants that do not allow one of them."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.places: tuple[DataPlace, ...] = ()
        self.misplaced: frozenset[str] = frozenset()  # those that did not allow a place when the shard started

    def enforce(self, places: tuple[DataPlace, ...]) -> None:
        """Start to refuse contents of tenants that do not allow one of ``places``."""
        self.places = places
        self.misplaced = frozenset(self._shard.state.catalog.tenants)
        self.misplaced = frozenset(self.misplaced_now())

    def misplaced_now(self) -> list[str]:
        """Return the misplaced tenants. None is added while the server runs, because such a change is refused."""
        return [name for name in self.misplaced if self._forbidden(self._regions(name)) is not None]

    def check(self, tenant: str) -> None:
        """Raise Conflict for a misplaced tenant."""
        if tenant in self.misplaced and (place := self._forbidden(self._regions(tenant))) is not None:
            raise Conflict(
                f"the tenant allows the regions {', '.join(self._regions(tenant))}, and its {place.what} are in"
                f" {place.region or 'no named region'}. Change its regions, or restart the server with data in one of them.",
                tenant=tenant,
            )

    def check_entry(self, tenant: str, entry_region: str) -> None:
        """Raise WrongRegion if a tenant does not allow the region of the server that its caller has called."""
        regions = self._regions(tenant)
        if not _allows(regions, entry_region):
            raise wrong_region(tenant, regions, entry_region)

    def excluded(self, entry_region: str | None) -> list[str]:
        """Return the tenants whose contents must not pass through a server in this region; None: it has no region."""
        found = self.misplaced_now()
        if entry_region is not None and entry_region != self._shard.settings.region:
            tenants = self._shard.state.catalog.tenants
            found += [name for name, one in tenants.items() if not _allows(one.config.regions, entry_region)]
        return found

    def check_regions(self, tenant: str, regions: tuple[str, ...]) -> None:
        """Raise Invalid if a tenant on this shard cannot have these regions because of its segments or backups."""
        place = self._forbidden(regions)
        if place is not None and place.what != "messages":
            raise Invalid(
                f"regions: {', '.join(regions)} do not include {place.region or 'the unnamed region'} of the"
                f" {place.what} at {place.where}. Allow it, or configure another place.",
                tenant=tenant,
            )

    def check_backup(self) -> None:
        """Raise Conflict if a backup would contain a misplaced tenant."""
        for tenant in sorted(self.misplaced_now()):
            self.check(tenant)

    def allowed(self, place: DataPlace, regions: tuple[str, ...]) -> bool:
        """Return whether a tenant with these regions may have data in a place."""
        return _allows(regions, place.region)

    def _regions(self, tenant: str) -> tuple[str, ...]:
        state = self._shard.state.catalog.tenants.get(tenant)
        return state.config.regions if state is not None else ()

    def _forbidden(self, regions: tuple[str, ...]) -> DataPlace | None:
        return next((place for place in self.places if not self.allowed(place, regions)), None)


def wrong_region(tenant: str, regions: tuple[str, ...], entry_region: str) -> WrongRegion:
    """Return the error for contents of a tenant whose caller has called a server in another region."""
    return WrongRegion(
        f"the tenant allows the regions {', '.join(regions)}, and this server is in {entry_region}."
        " Call a server in one of them.",
        tenant=tenant,
    )


def _allows(regions: tuple[str, ...], region: str) -> bool:
    return not regions or region in regions
