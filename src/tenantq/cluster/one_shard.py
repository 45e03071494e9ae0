"""The shard of a process that has only one, in the event loop that its callers use too."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from tenantq.cluster.error_codec import NotOwner
from tenantq.engine.shard import Shard
from tenantq.service.call import Call
from tenantq.service.service import Service


class OneShard:
    """The shards of such a process, and the shard itself. See ``shard_calls.LocalShards`` and ``call_server.ServedShard``."""

    is_open = True

    def __init__(self, number: int, shard: Shard) -> None:
        self.number = number
        self.shard = shard
        self.service: Service  # once it exists
        self.facets: dict[str, object] = {}  # by name: the objects whose methods can be called
        self.on_change: Callable[[], None] = lambda: None

    def thread(self, shard: int) -> "OneShard | None":
        """Return a shard of this process; None: another process has it."""
        return self if shard == self.number else None

    def threads(self) -> "list[OneShard]":
        """Return all shards of this process."""
        return [self]

    async def find(self, shard: int) -> "OneShard":
        """Return a shard of this process. Raises NotOwner."""
        if shard != self.number:
            raise self.not_owner()
        return self

    def not_owner(self) -> NotOwner:
        """Return the error for calls of another shard."""
        return NotOwner(f"this process has shard {self.number} only. Try again later.")

    def call(self, path: str, call: Call | None, /, *arguments: Any, **options: Any) -> Awaitable[Any]:
        """Call a method, ``facet.method``."""
        facet, _, name = path.partition(".")
        result = getattr(self.facets[facet], name)(*(arguments if call is None else (call, *arguments)), **options)
        if inspect.isawaitable(result):
            return result
        done = asyncio.get_running_loop().create_future()
        done.set_result(result)
        return done
