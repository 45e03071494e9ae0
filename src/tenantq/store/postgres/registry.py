"""The rows of a cluster in PostgreSQL: its identity, members, assignment and tenant directory."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec
from psycopg import Connection

from tenantq.domain.cluster_view import (
    CLUSTER_SHARDS,
    FIRST_FORMAT,
    FORMATS,
    Cluster,
    Heartbeats,
    Member,
    TenantPlacement,
)
from tenantq.errors import StoreFailed
from tenantq.store.cluster_rows import (
    CHANGES_KEPT,
    PATIENCE_MS,
    check_growth,
    check_loopback,
    check_readers,
    check_settings,
    decode_member,
    decode_placement,
    encode,
    parse_cluster,
    replaced,
    unversioned,
)
from tenantq.store.postgres.address import PostgresAddress
from tenantq.store.postgres.server_check import PostgresCheck, SessionLimits
from tenantq.store.postgres.session import BoundedConnection, PostgresRow, PostgresSession, fetch
from tenantq.store.postgres.settings import PostgresSettings
from tenantq.store.postgres.statements import Statements
from tenantq.store.postgres.tables import Tables

T = TypeVar("T")
_NOT_DURABLE: Final = "SET LOCAL synchronous_commit = off"
"""For rows that members write again and again."""


class PostgresRegistry:
    """See ``cluster.registry.Registry``."""

    def __init__(
        self, address: PostgresAddress, settings: PostgresSettings, durability: Literal["fsync", "os"] = "fsync"
    ) -> None:
        """Prepare; the first call connects."""
        self._address, self._settings = address, settings
        self._sql = Statements(settings.name)
        self._id = ""  # of the cluster, once it was created or found
        self._tables = Tables(address, settings.name, self._sql)
        self._check = PostgresCheck(address, settings, durability)
        limits = SessionLimits(PATIENCE_MS * 3 // 4, PATIENCE_MS // 4)
        self._session = PostgresSession(address, self._check, f"tenantq {settings.name} registry", limits, PATIENCE_MS)

    def close(self) -> None:
        """Disconnect. A call that waits fails."""
        self._session.close()

    # ---- identity ----

    def create(self, shards: int | None, regions: tuple[str, ...]) -> Cluster:
        """Create the cluster, or return the one that exists, with at least ``shards`` shards."""
        self._tables.create(self._session)
        new = {
            "id": secrets.token_hex(8),
            "format": FIRST_FORMAT,
            "shards": shards or CLUSTER_SHARDS,
            "regions": ",".join(regions),
        }

        def change(connection: BoundedConnection) -> Cluster:
            fetch(connection, self._sql["create_cluster"], new)
            fetch(connection, self._sql["touch_cluster"])
            self._read_cluster(connection)  # raises StoreFormat before anything changes
            check_growth(self._read_members(connection), shards or 0)
            if shards is not None:
                fetch(connection, self._sql["grow_cluster"], {"shards": shards, "formats": list(FORMATS)})
            cluster = self._read_cluster(connection)
            assert cluster is not None
            check_settings(self._settings.name, cluster, shards, regions)
            return cluster

        cluster = self._transact(change)
        self._check.in_use = True
        self._id = cluster.id
        return cluster

    def check_growth(self, shards: int) -> None:
        """Raise Invalid if ``create`` would refuse this number of shards. Changes nothing."""
        check_growth(self._session.call(self._read_members), shards)
        if (cluster := self.find()) is not None:
            check_settings(self._settings.name, cluster, shards, ())

    def check_join(self, member: Member) -> None:
        """Raise Invalid if a live member and this one cannot reach each other by their addresses. Changes nothing."""
        if self.is_served():
            check_loopback(self._session.call(self._read_members), member)

    def _read_members(self, connection: Connection) -> list[Member]:
        return [decode_member(row) for (row,) in fetch(connection, self._sql["read_members"])]

    def find(self) -> Cluster | None:
        """Return the cluster; None if it does not exist. Changes nothing."""
        if not self._tables.exist(self._session):
            return None
        return self._session.call(self._read_cluster)

    def _read_cluster(self, connection: Connection) -> Cluster | None:
        found = fetch(connection, self._sql["read_cluster"])
        return self._parse_cluster(found[0]) if found else None

    def _parse_cluster(self, row: Sequence[object]) -> Cluster:
        named = zip(("id", "format", "shards", "regions"), map(str, row), strict=True)
        return parse_cluster(self._address, self._settings.name, dict(named))

    def raise_format(self, format: str) -> None:
        """Have programs that do not read a format refuse the cluster. Raises Conflict if members do not read it."""

        def change(connection: BoundedConnection) -> None:
            fetch(connection, self._sql["touch_cluster"])
            check_readers(self._read_members(connection), format)
            fetch(connection, self._sql["raise_format"], {"format": format})

        self._transact(change)

    # ---- members and assignment ----

    def heartbeat(self, member: Member, assigner_ms: int) -> Heartbeats:
        """Write a member's row, take or renew the assigner's lease if it is free, and return all rows.

        Raises StoreFormat, and writes nothing, if the store has another cluster now, or none.
        """
        named = {"id": member.id, "member": encode(member), "assigner_ms": assigner_ms, "cluster": self._id}

        def beat(connection: BoundedConnection) -> PostgresRow:
            with connection.pipeline(), connection.transaction():
                connection.execute(_NOT_DURABLE)
                connection.execute(self._sql["write_member"], named)
                connection.execute(self._sql["take_assigner"], named)
                cursor = connection.execute(self._sql["read_all"], binary=True)
            row = cursor.fetchone()
            assert row is not None
            return row

        cluster, members, beats, assignment, assigner, drains = self._session.call(beat)
        there = cluster[0][0] if cluster else ""
        if there != self._id:
            raise replaced(self._address, self._settings.name, there, self._id)
        rows = [decode_member(row) for row in members]
        return Heartbeats(
            cluster=self._parse_cluster(cluster[0][:4]),
            members={one.id: one for one in rows},
            beats={id: int(number) for id, number in beats},
            assignment={int(shard): id for shard, id in assignment or ()},
            assigner=assigner or "",
            directory_version=int(cluster[0][4]),
            drains=frozenset(drains or ()),
        )

    def is_served(self) -> bool:
        """Return whether members are alive: then one of them has the assigner's lease."""
        return self._tables.exist(self._session) and bool(self._session.execute(self._sql["is_served"])[0][0])

    def leave(self, member_id: str) -> None:
        """Delete a member's row, and give up the assigner's lease."""

        def change(connection: BoundedConnection) -> None:
            fetch(connection, _NOT_DURABLE)
            for name in ("delete_members", "delete_drains", "leave_assigner"):
                fetch(connection, self._sql[name], {"ids": [member_id]})

        self._transact(change)

    def request_drain(self, member_id: str, *, drain: bool) -> None:
        """Drain a member, or undo a drain."""
        if drain:
            self._durably("add_drain", {"id": member_id})
        else:
            self._durably("delete_drains", {"ids": [member_id]})

    def assign(self, assigner: str, changes: Mapping[int, str], forget: Sequence[str]) -> bool:
        """Change the assignment and delete members' rows. Return False if another member assigns now."""

        def change(connection: BoundedConnection) -> bool:
            fetch(connection, _NOT_DURABLE)
            if fetch(connection, self._sql["lock_assigner"]) != [(assigner,)]:
                return False
            new = {"shards": list(changes), "members": list(changes.values())}
            fetch(connection, self._sql["assign"], new)
            for name in ("delete_members", "delete_drains"):
                fetch(connection, self._sql[name], {"ids": list(forget)})
            return True

        return self._transact(change)

    # ---- directory ----

    def place_tenant(self, tenant: str, placement: TenantPlacement) -> TenantPlacement:
        """Return the tenant's placement; write the given one if it has none."""
        return self._transact(lambda one: self._lock_placement(one, tenant) or self._replace(one, tenant, placement))

    def move_tenant(self, tenant: str, placement: TenantPlacement, expected_version: int) -> TenantPlacement | None:
        """Replace a placement that has this version. Return None if it has another one."""

        def change(connection: BoundedConnection) -> TenantPlacement | None:
            found = self._lock_placement(connection, tenant)
            if found is None:
                return None
            if found.version != expected_version:  # it may be this move, sent twice
                return found if unversioned(found) == unversioned(placement) else None
            return self._replace(connection, tenant, placement)

        return self._transact(change)

    def remove_tenant(self, tenant: str) -> None:
        """Delete a tenant's placement."""

        def change(connection: BoundedConnection) -> None:
            if self._lock_placement(connection, tenant) is not None:
                fetch(connection, self._sql["delete_placement"], {"tenant": tenant})
                self._log(connection, tenant, None)

        self._transact(change)

    def _lock_placement(self, connection: BoundedConnection, tenant: str) -> TenantPlacement | None:
        """Return the tenant's placement. It does not change before the transaction ends."""
        if not fetch(connection, self._sql["touch_cluster"]):
            raise StoreFailed(f"store {self._address}: the rows of cluster {self._settings.name!r} are gone.")
        found = fetch(connection, self._sql["read_placement"], {"tenant": tenant})
        return decode_placement(*found[0]) if found else None

    def _replace(self, connection: BoundedConnection, tenant: str, placement: TenantPlacement) -> TenantPlacement:
        row = encode(unversioned(placement))
        version = self._log(connection, tenant, row)
        fetch(connection, self._sql["write_placement"], {"tenant": tenant, "version": version, "placement": row})
        return msgspec.structs.replace(placement, version=version)

    def _log(self, connection: BoundedConnection, tenant: str, row: bytes | None) -> int:
        """Add a change to the log and return its version."""
        ((version,),) = fetch(connection, self._sql["next_version"])
        fetch(connection, self._sql["log_change"], {"version": version, "tenant": tenant, "placement": row})
        fetch(connection, self._sql["trim_log"], {"version": version, "kept": CHANGES_KEPT})
        return int(version)

    def placements(self) -> tuple[int, dict[str, TenantPlacement]]:
        """Return the directory and its version."""
        rows = self._session.execute(self._sql["read_directory"])
        return int(rows[0][0] or 0), {
            tenant: decode_placement(version, row) for _, tenant, version, row in rows if tenant is not None
        }

    def placement_changes(self, since: int) -> tuple[int, dict[str, TenantPlacement | None]] | None:
        """Return the changes after a version, None for removed tenants; None: too old, read the whole directory."""
        changes: dict[str, TenantPlacement | None] = {}
        version = since
        for number, tenant, row in self._session.execute(self._sql["read_log"], {"since": since, "kept": CHANGES_KEPT}):
            if number != version + 1:
                return None
            version = number
            changes[tenant] = decode_placement(number, row) if row is not None else None
        return version, changes

    # ---- shared values ----

    def shared_value(self, name: str, value: bytes) -> bytes:
        """Return a small value that all members share; store the given one if there is none."""

        def change(connection: BoundedConnection) -> bytes:
            fetch(connection, self._sql["touch_cluster"])
            fetch(connection, self._sql["shared_value"], {"name": name, "value": value})
            stored: bytes = fetch(connection, self._sql["read_shared_value"], {"name": name})[0][0]
            return stored

        return self._transact(change)

    def shared_values(self) -> dict[str, bytes]:
        """Return all shared values by name."""
        return dict(self._session.execute(self._sql["read_shared_values"]))

    def remove_shared(self, name: str) -> None:
        """Delete a shared value."""
        self._durably("remove_shared", {"name": name})

    # ---- transactions ----

    def _transact(self, change: Callable[[BoundedConnection], T]) -> T:
        """Return what ``change`` returns, once its transaction is confirmed. It may run more than once."""

        def transaction(connection: BoundedConnection) -> T:
            with connection.transaction():
                return change(connection)

        return self._session.call(transaction)

    def _durably(self, name: str, parameters: dict[str, Any]) -> None:
        """Run a statement that changes nothing when it is sent again; ``touch_cluster`` makes that wait for standbys too."""

        def change(connection: BoundedConnection) -> None:
            fetch(connection, self._sql["touch_cluster"])
            fetch(connection, self._sql[name], parameters)

        self._transact(change)
