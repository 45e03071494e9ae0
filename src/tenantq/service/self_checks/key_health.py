"""Key health: checks that every key in use can wrap and unwrap data keys."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from tenantq.errors import TenantqError
from tenantq.kms.interface import KeyHealth, KeyRef
from tenantq.service.self_checks.check import CheckResult

KEYS_MAX: Final = 100
"""Keys tried per run. The next run continues with the next ones."""

_SHOWN_MAX: Final = 5
_SLICE: Final = 500


class KeyHealthCheck:
    """Tries the keys in use, in turns. ``try_key`` is bounded in time."""

    name = "key_health"

    def __init__(
        self, keys_in_use: Callable[[], Iterable[KeyRef]], try_key: Callable[[KeyRef], Awaitable[KeyHealth]]
    ) -> None:
        self._keys_in_use = keys_in_use
        self._try_key = try_key
        self._last: KeyRef | None = None
        self._troubles: dict[KeyRef, str] = {}  # until the key is tried again

    async def run(self) -> CheckResult:
        """Try each key once, up to the limit."""
        found: set[KeyRef] = set()
        for count, key in enumerate(self._keys_in_use()):
            found.add(key)
            if count % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)  # others follow in the next run
        keys = sorted(found)
        if not keys:
            return CheckResult(ok=True, text="no tenant is encrypted here")
        last = self._last
        turn = [key for key in keys if last is None or key > last][:KEYS_MAX] or keys[:KEYS_MAX]
        for key in turn:
            self._troubles[key] = await self._trouble(key)
        self._last = turn[-1]
        self._troubles = {key: text for key, text in self._troubles.items() if text and key in found}
        troubles = list(self._troubles.values())
        if troubles:
            more = f" and {len(troubles) - _SHOWN_MAX} more" if len(troubles) > _SHOWN_MAX else ""
            return CheckResult(ok=False, text="; ".join(troubles[:_SHOWN_MAX]) + more)
        return CheckResult(ok=True, text=f"{len(turn)} of {len(keys)} keys wrap and unwrap")

    async def _trouble(self, key: KeyRef) -> str:
        """Return the problem of a key, or an empty text."""
        try:
            health = await self._try_key(key)
        except TenantqError as error:
            return f"{key}: {error.message}"
        return f"{key} is {health.state}: {health.text}" if health.state != "ok" else ""
