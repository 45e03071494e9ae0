"""The open connections of a listener, by address and credential, with a limit on each.

A connection is a stranger until a credential was accepted on it. When a limit is reached, the oldest stranger that is not being
answered is closed, so that silent connections cannot keep clients out.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

_LOOKED_AT_MAX: Final = 64
"""How many connections are considered for eviction, so that a new connection costs a bounded amount of work."""


class Evictable(Protocol):
    """A connection, or a TLS handshake that may become one."""

    def is_answering(self) -> bool:
        """Return whether a request is being answered."""

    def unfinished_bytes(self) -> int:
        """Return the bytes held for a request that has not fully arrived."""

    def abort(self) -> None:
        """Close at once, even during requests."""


E = TypeVar("E", bound=Evictable)


class _Group(Generic[E]):
    __slots__ = ("members", "strangers")

    def __init__(self) -> None:
        self.members: dict[E, None] = {}  # oldest first
        self.strangers: dict[E, None] = {}  # those without a credential, oldest first


class ConnectionTable(Generic[E]):
    """Decides which connections stay open. An empty address is not limited."""

    def __init__(self, connections_max: int, address_max: int | None, credential_max: int | None) -> None:
        """``None`` allows an address or a credential half of all connections."""
        half = max(1, connections_max // 2)
        self._max = connections_max
        self._address_max, self._credential_max = address_max or half, credential_max or half
        self._all: _Group[E] = _Group()
        self._address_of: dict[E, str] = {}
        self._addresses: dict[str, _Group[E]] = {}
        self._credential_of: dict[E, str] = {}
        self._credentials: dict[str, dict[E, None]] = {}
        self.evicted_total = {"address": 0, "credential": 0, "server": 0}

    def __len__(self) -> int:
        return len(self._all.members)

    def admit(self, connection: E, address: str) -> bool:
        """Add a new connection, closing a stranger if a limit is reached. Return False if there is no room."""
        group = self._addresses.get(address)
        if group is not None and address and len(group.members) >= self._address_max:
            if not self._evict(group.strangers, "address"):
                return False
            group = self._addresses.get(address)
        if len(self._all.members) >= self._max and not self._evict(self._all.strangers, "server"):
            return False
        group = self._addresses.setdefault(address, group or _Group())
        for one in (self._all, group):
            one.members[connection] = one.strangers[connection] = None
        self._address_of[connection] = address
        return True

    def replace(self, handshake: E, connection: E) -> bool:
        """Put a connection in place of its handshake. Return False if the handshake was evicted."""
        address = self._address_of.get(handshake)
        if address is None:
            return False
        self.remove(handshake)
        return self.admit(connection, address)

    def recognize(self, connection: E, credential: str) -> bool:
        """Note that a credential was accepted on a connection. Return False if the credential has too many connections.

        An idle connection of the same credential is closed first to make room.
        """
        if self._credential_of.get(connection) == credential or connection not in self._address_of:
            return True
        self._all.strangers.pop(connection, None)
        self._addresses[self._address_of[connection]].strangers.pop(connection, None)
        self._forget_credential(connection)
        same = self._credentials.setdefault(credential, {})
        same[connection] = None
        self._credential_of[connection] = credential
        if len(same) <= self._credential_max:
            return True
        idle = (one for one in islice(same, _LOOKED_AT_MAX) if one is not connection and not one.unfinished_bytes())
        return self._evict(idle, "credential")

    def remove(self, connection: E) -> None:
        """Remove a connection that has ended."""
        address = self._address_of.pop(connection, None)
        if address is None:
            return
        group = self._addresses[address]
        for one in (self._all, group):
            del one.members[connection]
            one.strangers.pop(connection, None)
        if not group.members:
            del self._addresses[address]
        self._forget_credential(connection)

    def _forget_credential(self, connection: E) -> None:
        credential = self._credential_of.pop(connection, None)
        if credential is not None:
            same = self._credentials[credential]
            del same[connection]
            if not same:
                del self._credentials[credential]

    def _evict(self, candidates: Iterable[E], reason: str) -> bool:
        """Close the first candidate that is not being answered; return whether there was one."""
        for one in islice(candidates, _LOOKED_AT_MAX):
            if not one.is_answering():
                self.evicted_total[reason] += 1
                self.remove(one)
                one.abort()
                return True
        return False
