"""The rows of a cluster in Redis: its identity, members, assignment and tenant directory. All carry one hash tag.

With ``t:{name}:`` before each key:

    cluster            hash: id, format, shards, regions
    members, beats     hashes by member id: its row in JSON; the number of its heartbeats
    assignment         hash by shard: the id of the member that should own it
    assigner           string with an expiry: the id of the member that assigns
    directory          hash by tenant: version and placement in JSON
    directory:version  counter of changes
    directory:log      stream of changes; an entry's id is the version
    drains             set of members that an operator wants to drain
    shared             hash of small values that all members share
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from tenantq.domain.cluster_view import (
    CLUSTER_SHARDS,
    FIRST_FORMAT,
    FORMATS,
    Cluster,
    Heartbeats,
    Member,
    TenantPlacement,
)
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
from tenantq.store.redis.address import RedisAddress
from tenantq.store.redis.durability import DurabilityCheck
from tenantq.store.redis.link import Script, SlotLink
from tenantq.store.redis.settings import RedisSettings

_ANSWER_S: Final = 0.5
_CREATE, _HEARTBEAT, _ASSIGN, _LEAVE, _DIRECTORY = (
    Script(name) for name in ("create", "heartbeat", "assign", "leave", "directory")
)


class RedisRegistry:
    """See ``cluster.registry.Registry``."""

    def __init__(
        self, address: RedisAddress, settings: RedisSettings, durability: Literal["fsync", "os"] = "fsync"
    ) -> None:
        """Prepare; the first call connects."""
        root = b"t:{%s}:" % settings.name.encode()
        self._address, self._settings = address, settings
        self._cluster, self._members, self._beats, self._assignment, self._assigner, self._shared, self._drains = (
            root + name for name in (b"cluster", b"members", b"beats", b"assignment", b"assigner", b"shared", b"drains")
        )
        self._directory = [root + b"directory", root + b"directory:version", root + b"directory:log"]
        self._id = ""  # of the cluster, once it was created or found
        self._durability = DurabilityCheck(address, settings, durability)
        self._link = SlotLink(address, self._cluster, PATIENCE_MS, self._durability, _ANSWER_S)

    def close(self) -> None:
        """Disconnect. A call that waits fails."""
        self._link.close()

    # ---- identity ----

    def create(self, shards: int | None, regions: tuple[str, ...]) -> Cluster:
        """Create the cluster, or return the one that exists, with at least ``shards`` shards."""
        check_growth(self._read_members(), shards or 0)
        new = [secrets.token_hex(8), FIRST_FORMAT, str(shards or 0), ",".join(regions), str(CLUSTER_SHARDS)]
        arguments = [*new, *FORMATS]
        found = self._durably(_CREATE, [self._cluster], [one.encode() for one in arguments])
        cluster = self._parse_cluster(_pairs(found))
        check_settings(self._settings.name, cluster, shards, regions)
        self._durability.in_use = True
        self._id = cluster.id
        return cluster

    def check_growth(self, shards: int) -> None:
        """Raise Invalid if ``create`` would refuse this number of shards. Changes nothing."""
        check_growth(self._read_members(), shards)
        if (cluster := self.find()) is not None:
            check_settings(self._settings.name, cluster, shards, ())

    def check_join(self, member: Member) -> None:
        """Raise Invalid if a live member and this one cannot reach each other by their addresses. Changes nothing."""
        if self.is_served():
            check_loopback(self._read_members(), member)

    def _read_members(self) -> list[Member]:
        return [decode_member(row) for row in _pairs(self._link.call("HGETALL", self._members)).values()]

    def find(self) -> Cluster | None:
        """Return the cluster; None if it does not exist. Changes nothing."""
        found = self._link.call("HGETALL", self._cluster)
        return self._parse_cluster(_pairs(found)) if found else None

    def _parse_cluster(self, row: dict[bytes, bytes]) -> Cluster:
        named = {field.decode(errors="replace"): value.decode(errors="replace") for field, value in row.items()}
        return parse_cluster(self._address, self._settings.name, named)

    def raise_format(self, format: str) -> None:
        """Have programs that do not read a format refuse the cluster. Raises Conflict if members do not read it."""
        check_readers(self._read_members(), format)
        self._link.call("HSET", self._cluster, "format", format)
        self._wait()

    # ---- members and assignment ----

    def heartbeat(self, member: Member, assigner_ms: int) -> Heartbeats:
        """Write a member's row, take or renew the assigner's lease if it is free, and return all rows.

        Raises StoreFormat, and writes nothing, if the store has another cluster now, or none.
        """
        keys = [
            self._cluster,
            self._members,
            self._beats,
            self._assignment,
            self._assigner,
            self._directory[1],
            self._drains,
        ]
        arguments = [member.id.encode(), encode(member), b"%d" % assigner_ms, self._id.encode()]
        found = self._link.run(_HEARTBEAT, keys, arguments)
        if len(found) == 1:
            there = _pairs(found[0]).get(b"id", b"").decode(errors="replace")
            raise replaced(self._address, self._settings.name, there, self._id)
        cluster, members, beats, assignment, assigner, version, drains = found
        rows = [decode_member(row) for row in _pairs(members).values()]
        return Heartbeats(
            cluster=self._parse_cluster(_pairs(cluster)),
            members={one.id: one for one in rows},
            beats={id.decode(): int(beat) for id, beat in _pairs(beats).items()},
            assignment={int(shard): id.decode() for shard, id in _pairs(assignment).items()},
            assigner=assigner.decode(),
            directory_version=int(version),
            drains=frozenset(id.decode() for id in drains),
        )

    def is_served(self) -> bool:
        """Return whether members are alive: then one of them has the assigner's lease."""
        return bool(self._link.call("EXISTS", self._assigner))

    def leave(self, member_id: str) -> None:
        """Delete a member's row, and give up the assigner's lease."""
        keys = [self._members, self._beats, self._drains, self._assigner]
        self._link.run(_LEAVE, keys, [member_id.encode()])

    def request_drain(self, member_id: str, *, drain: bool) -> None:
        """Drain a member, or undo a drain."""
        self._link.call("SADD" if drain else "SREM", self._drains, member_id)

    def assign(self, assigner: str, changes: Mapping[int, str], forget: Sequence[str]) -> bool:
        """Change the assignment and delete members' rows. Return False if another member assigns now."""
        pairs = [text.encode() for shard, id in changes.items() for text in (str(shard), id)]
        arguments = [assigner.encode(), b"%d" % len(changes), *pairs, *(id.encode() for id in forget)]
        keys = [self._assigner, self._assignment, self._members, self._beats, self._drains]
        return bool(self._link.run(_ASSIGN, keys, arguments))

    # ---- directory ----

    def place_tenant(self, tenant: str, placement: TenantPlacement) -> TenantPlacement:
        """Return the tenant's placement; write the given one if it has none."""
        row = self._change(b"place", tenant, placement)
        assert row is not None
        return row

    def move_tenant(self, tenant: str, placement: TenantPlacement, expected_version: int) -> TenantPlacement | None:
        """Replace a placement that has this version. Return None if it has another one."""
        return self._change(b"move", tenant, placement, expected_version)

    def remove_tenant(self, tenant: str) -> None:
        """Delete a tenant's placement."""
        self._change(b"remove", tenant, None)

    def _change(
        self, kind: bytes, tenant: str, placement: TenantPlacement | None, version: int = 0
    ) -> TenantPlacement | None:
        row = b"" if placement is None else encode(unversioned(placement))
        arguments = [kind, tenant.encode(), row, b"%d" % CHANGES_KEPT, b"%d" % version]
        stored = self._durably(_DIRECTORY, self._directory, arguments)
        return _parse_placement(stored) if stored else None

    def placements(self) -> tuple[int, dict[str, TenantPlacement]]:
        """Return the directory and its version."""
        version, rows = self._link.calls([("GET", self._directory[1]), ("HGETALL", self._directory[0])])
        return int(version or 0), {name.decode(): _parse_placement(row) for name, row in _pairs(rows).items()}

    def placement_changes(self, since: int) -> tuple[int, dict[str, TenantPlacement | None]] | None:
        """Return the changes after a version, None for removed tenants; None: too old, read the whole directory."""
        entries = self._link.call("XRANGE", self._directory[2], f"({since}-0", "+", "COUNT", CHANGES_KEPT)
        changes: dict[str, TenantPlacement | None] = {}
        version = since
        for id, (_, name, _, row) in entries:
            number = int(id.partition(b"-")[0])
            if number != version + 1:
                return None
            version = number
            changes[name.decode()] = _parse_placement(row) if row else None
        return version, changes

    # ---- shared values ----

    def shared_value(self, name: str, value: bytes) -> bytes:
        """Return a small value that all members share; store the given one if there is none."""
        self._link.call("HSETNX", self._shared, name, value)
        self._wait()
        stored: bytes = self._link.call("HGET", self._shared, name)
        return stored

    def shared_values(self) -> dict[str, bytes]:
        """Return all shared values by name."""
        return {name.decode(): value for name, value in _pairs(self._link.call("HGETALL", self._shared)).items()}

    def remove_shared(self, name: str) -> None:
        """Delete a shared value."""
        self._link.call("HDEL", self._shared, name)

    # ---- durability ----

    def _durably(self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Any:
        """Run a script and return its answer when it is as durable as a round."""
        answer = self._link.run(script, keys, arguments)
        self._wait()
        return answer

    def _wait(self) -> None:
        """Return when everything that this connection wrote is on the disk and the replicas that the settings ask for."""
        touch = ("HSET", self._shared, "touched", b"")  # WAIT is about writes of its own connection

        def touch_and(*command: bytes | str | int) -> Any:
            return self._link.calls([touch, command], bound=True)[1]

        answer_ms = int(self._link.answer_s * 500)
        self._durability.wait(touch_and, "a change of the cluster's rows", patience_ms=PATIENCE_MS, answer_ms=answer_ms)


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _parse_placement(stored: bytes) -> TenantPlacement:
    version, _, row = stored.partition(b" ")
    return decode_placement(int(version), row)
