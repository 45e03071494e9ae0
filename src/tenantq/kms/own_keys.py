"""Keys that the server makes by itself in its keyring: one for each tenant that names none, destroyed with the tenant."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tenantq.errors import Conflict, Invalid, KmsUnavailable, NotFound
from tenantq.kms.interface import KeyRef
from tenantq.kms.local import NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenantq.kms.keyring import KeyringFile
    from tenantq.runtime.clock import Clock

PREFIX: Final = "tenant-"


class OwnKeys:
    """A keyring in which each tenant has a key of its own. The running provider ``local`` sees changes by itself."""

    def __init__(self, ring: KeyringFile, clock: Clock) -> None:
        self._ring = ring
        self._clock = clock

    def ref(self, tenant: str) -> KeyRef:
        """Return what a tenant's own key is called."""
        return KeyRef(NAME, PREFIX + tenant)

    async def make(self, tenant: str) -> None:
        """Add a tenant's key, if it is not there; KmsUnavailable."""
        now = self._clock.wall_ms()
        await _change(lambda: self._ring.add_key(PREFIX + tenant, now))

    async def destroy(self, tenant: str) -> None:
        """Destroy a tenant's key, if it is there; KmsUnavailable."""
        await _change(lambda: self._ring.remove_key(PREFIX + tenant))


async def _change(change: Callable[[], None]) -> None:
    try:
        await asyncio.to_thread(change)
    except (Conflict, NotFound):
        pass  # it is so already
    except Invalid as error:
        raise KmsUnavailable(f"local: the keyring cannot be changed: {error.message}") from None
