"""Plans of where tenants live: pure functions of the directory. A plan is the new rows of the tenants that it changes.

``served`` are the regions that have servers.
"""

from collections.abc import Container, Mapping, Sequence
from typing import TypeAlias

import msgspec

from tenantq.domain.cluster_view import Cluster, TenantPlacement
from tenantq.domain.placement import jump_hash, tenant_key
from tenantq.errors import Conflict, Invalid
from tenantq.store.shard_directories import HOME

Placements: TypeAlias = Mapping[str, TenantPlacement]


def current_shard(row: TenantPlacement) -> int:
    """Return the shard that a tenant is on, or on its way to."""
    return row.shard if row.moving_to is None else row.moving_to


def dedicated_shards(rows: Placements) -> dict[int, str]:
    """Return the shards that hold one tenant only, with its name."""
    return {current_shard(row): name for name, row in rows.items() if row.dedicated}


def check_shard(cluster: Cluster, shard: int) -> None:
    """Raise Invalid for a shard that does not exist."""
    if not 0 <= shard < cluster.shards:
        raise Invalid(f"shard: unknown ({shard}, the cluster has shards 0 to {cluster.shards - 1}).")


def _check_allowed(cluster: Cluster, tenant: str, shard: int, regions: Sequence[str]) -> None:
    region = cluster.region_of(shard)
    if regions and region not in regions:
        raise Invalid(
            f"shard: shard {shard} is in {region or 'no region'}, but the tenant allows only {', '.join(regions)}.",
            tenant=tenant,
        )


def _placed(row: TenantPlacement, shard: int, *, dedicated: bool) -> TenantPlacement:
    moving_to = shard if shard != row.shard else None
    return msgspec.structs.replace(row, pinned=True, dedicated=dedicated, moving_to=moving_to)


def _check_not_spread(rows: Placements, tenant: str) -> None:
    if len(rows[tenant].parts) > 1 or rows[tenant].shards:
        raise Conflict(
            f"its queues are spread over several shards, and its home is shard {rows[tenant].shard}."
            " Set its spread to 1 first.",
            tenant=tenant,
        )


def plan_spread(
    cluster: Cluster, rows: Placements, tenant: str, spread: int, regions: Sequence[str], served: Container[str]
) -> Placements:
    """Return the plan that spreads the queues of a tenant over shards. Its home is the first of them and stays.

    Raises Invalid if the tenant's regions have fewer shards that a server can own, and Conflict while it is moving.
    """
    row = rows[tenant]
    if row.next_shards or row.leaving or row.moving_to is not None:
        raise Conflict("the tenant or its queues are moving. Try again later.", tenant=tenant)
    if row.dedicated and spread > 1:
        raise Conflict("the tenant has a shard of its own. Unpin it first.", tenant=tenant)
    taken = dedicated_shards(rows)
    free = [one for one in cluster.shards_in(tuple(regions), served) if taken.get(one, tenant) == tenant]
    if not 1 <= spread <= len(free):
        where = f" in {', '.join(regions)}" if regions else ""
        raise Invalid(
            f"spread: must be between 1 and the number of available shards{where} ({spread}, {len(free)}).",
            tenant=tenant,
        )
    kept = (row.shards or (row.shard,))[:spread]
    others = sorted(set(free) - set(kept), key=lambda shard: tenant_key(f"{tenant}#{shard}"))
    shards = (*kept, *others[: spread - len(kept)])
    if shards == (row.shards or (row.shard,)):
        return {}
    return {tenant: msgspec.structs.replace(row, next_shards=shards)}


def plan_pin(cluster: Cluster, rows: Placements, tenant: str, shard: int, regions: Sequence[str]) -> Placements:
    """Return the plan that puts a tenant on a shard. Raises Invalid or Conflict if the shard cannot have it.

    A tenant whose queues are spread over shards can be pinned to its home only, which changes nothing else.
    """
    check_shard(cluster, shard)
    if shard != rows[tenant].shard:
        _check_not_spread(rows, tenant)
    _check_allowed(cluster, tenant, shard, regions)
    owner = dedicated_shards(rows).get(shard, tenant)
    if owner != tenant:
        raise Conflict(f"shard {shard} is dedicated to tenant {owner}. Unpin that tenant first.", tenant=tenant)
    return {tenant: _placed(rows[tenant], shard, dedicated=False)}


def plan_unpin(rows: Placements, tenant: str) -> Placements:
    """Return the plan that lets a tenant be like others. It stays where it is; a move that is not decided ends."""
    row = msgspec.structs.replace(rows[tenant], pinned=False, dedicated=False, moving_to=None)
    return {tenant: row} if row != rows[tenant] else {}


def plan_dedication(
    cluster: Cluster, rows: Placements, tenant: str, shard: int | None, regions: Sequence[str], served: Container[str]
) -> Placements:
    """Return the plan that gives a tenant a shard of its own: the named one, or the one from which the fewest others move.

    Raises Invalid or Conflict if no shard can be emptied for it.
    """
    _check_not_spread(rows, tenant)
    if shard is not None:
        check_shard(cluster, shard)
        _check_allowed(cluster, tenant, shard, regions)
        if shard == HOME:
            raise Conflict(f"shard {HOME} holds the tenant 'default' and cannot be dedicated.", tenant=tenant)
    taken = {number for number, owner in dedicated_shards(rows).items() if owner != tenant}
    others: dict[int, list[str]] = {}
    for name, row in rows.items():
        if name != tenant:
            for number in row.parts if row.moving_to is None else (row.moving_to,):
                others.setdefault(number, []).append(name)
    fixed = {name for name, row in rows.items() if row.pinned or len(row.parts) > 1}
    allowed = [
        number
        for number in ([shard] if shard is not None else cluster.shards_in(tuple(regions), served))
        if number != HOME and number not in taken and fixed.isdisjoint(others.get(number, ()))
    ]
    if not allowed:
        where = f"shard {shard}" if shard is not None else "every available shard in its regions"
        raise Conflict(f"{where} holds pinned or spread tenants, or belongs to another tenant.", tenant=tenant)
    here = current_shard(rows[tenant])
    chosen = min(allowed, key=lambda number: (len(others.get(number, ())), number != here, number))
    plan = {tenant: _placed(rows[tenant], chosen, dedicated=True)}
    for name in sorted(others.get(chosen, ())):
        free = [one for one in cluster.shards_in(rows[name].regions, served) if one != chosen and one not in taken]
        if not free:
            raise Conflict(
                f"tenant {name} is on shard {chosen}, and no other shard in its regions is available.", tenant=tenant
            )
        target = free[jump_hash(tenant_key(name), len(free))]
        plan[name] = msgspec.structs.replace(rows[name], moving_to=target if target != rows[name].shard else None)
    return plan
