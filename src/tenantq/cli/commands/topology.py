"""``tenantq topology``: shards and regions, the placement of tenants, and what another topology would move."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.options import FILE, Count, shards_by_region
from tenantq.cli.output import Columns, Output, Table, table
from tenantq.client import Client
from tenantq.domain.formatting import show_time
from tenantq.domain.names import OptionalRegionName
from tenantq.domain.placement import HeldTenant, Topology, TopologyShard, load_topology, plan_moves, unplaced_tenants
from tenantq.domain.validation import check_field
from tenantq.errors import Invalid, TenantqError
from tenantq.wire.cluster import PlacementRequest

_PROBE_MS: Final = 5_000
_LISTED: Final = 50
_LOOK_S: Final = 0.1


@click.group(cls=CommandGroup)
def topology() -> None:
    """Show, check and plan shards and regions, and place tenants."""


@server_command(topology)
def show(connection: ServerConnection) -> Output:
    """Show the shards of a server."""
    known = connection.client.topology()
    columns: Columns = ["name", "region", ("address", lambda one: one.address or connection.target.url)]
    facts = {"server": known.server, "version": known.version, "format": known.format, "time": show_time(known.now)}
    return Output(known, table(columns, known.shards, "no shards"), {**facts, "encryption": known.encryption})


@server_command(topology)
@click.argument("name", metavar="TENANT")
def prove(connection: ServerConnection, *, name: str) -> Output:
    """List where a tenant's data is, and whether its regions allow each place.

    \b
    Exit codes:
      0  all places are allowed
      7  data is in a region that the tenant does not allow
    """
    found = connection.client.tenant(name).residency()
    columns: Columns = [
        ("data", "what"),
        ("place", "where"),
        ("region", lambda one: one.region or "unknown"),
        "allowed",
    ]
    return Output(
        found,
        {"tenant": found.tenant, "regions": ", ".join(found.regions) or "any", "shard": ", ".join(found.shards)},
        table(columns, found.places, "no data"),
        code=exit_codes.OK if found.allowed else exit_codes.CONFLICT,
    )


_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would move, and change nothing.")
_NO_WAIT = click.option("--no-wait", is_flag=True, help="Return without waiting for the moves.")


@server_command(topology)
@click.argument("name", metavar="TENANT")
@click.argument("shard", type=click.IntRange(0), metavar="SHARD")
@_DRY_RUN
@_NO_WAIT
def pin(connection: ServerConnection, *, name: str, shard: int, dry_run: bool, no_wait: bool) -> Output:
    """Move a tenant to a shard, and keep it there.

    The tenant is served while its data is copied; calls then wait for less than a second. The move continues if this
    command is interrupted. Exits with 2 if the shard does not exist, or is in a region that the tenant does not allow.
    """
    return _place(connection, name, PlacementRequest(shard=shard, dry_run=dry_run), wait=not no_wait)


@server_command(topology)
@click.argument("name", metavar="TENANT")
@click.option("--shard", type=click.IntRange(0), metavar="SHARD", help="Shard to use.  [default: the one from which the fewest tenants move]")  # fmt: skip
@_DRY_RUN
@_NO_WAIT
def dedicate(
    connection: ServerConnection, *, name: str, shard: int | None, dry_run: bool, no_wait: bool
) -> Output:  # fmt: skip
    """Give a tenant a shard of its own.

    Other tenants on that shard move away, and new tenants are not placed there.
    """
    return _place(connection, name, PlacementRequest(shard=shard, dedicated=True, dry_run=dry_run), wait=not no_wait)


@server_command(topology)
@click.argument("name", metavar="TENANT")
@_DRY_RUN
def unpin(connection: ServerConnection, *, name: str, dry_run: bool) -> Output:
    """Undo 'pin' and 'dedicate'.

    The tenant stays on its shard. A move in progress is cancelled unless it is already decided.
    """
    return _place(connection, name, PlacementRequest(pinned=False, dry_run=dry_run), wait=True)


@server_command(topology)
@click.argument("name", metavar="TENANT")
@click.argument("shards", type=Count(1))
@_DRY_RUN
@_NO_WAIT
def spread(connection: ServerConnection, *, name: str, shards: int, dry_run: bool, no_wait: bool) -> Output:
    """Spread the queues of a tenant over N shards.

    Its home shard stays. A hash of each queue's name selects its shard; only queues whose shard changes move, each with its
    dead letters. Quotas and rate limits hold over all shards together. 1 brings all queues back to the home shard.
    """
    return _place(connection, name, PlacementRequest(spread=shards, dry_run=dry_run), wait=not no_wait)


def _place(connection: ServerConnection, name: str, request: PlacementRequest, *, wait: bool) -> Output:
    """Send a request, and wait until the tenants have moved."""
    platform = connection.client.platform()
    found = platform.place_tenant(name, request)
    moving = {name, *(one.tenant for one in found.moves)}
    while wait and not request.dry_run and moving:
        moving = {tenant for tenant in moving if (now := platform.placement(tenant)).moves or now.changing}
        if moving:
            time.sleep(_LOOK_S)
    done = platform.placement(name) if wait and not request.dry_run else found
    verb = "would move" if request.dry_run else "moved" if wait else "moves"
    return Output(
        {"placement": done, "moves": found.moves},
        {
            "tenant": done.tenant,
            "shard": done.shard,
            "region": done.region,
            "spread": f"{done.spread} (shards {', '.join(map(str, done.shards))})" if done.spread > 1 else 1,
            "pinned": done.pinned,
            "dedicated": done.dedicated,
        },
        *(f"tenant {one.tenant} {verb} from shard {one.source} to shard {one.target}" for one in found.moves),
    )


@server_command(topology)
@click.argument("file", type=FILE)
@click.option("--tenants", "ask", is_flag=True, help="Also check that every tenant of the server has an eligible shard.")  # fmt: skip
@click.option("--probe", is_flag=True, help="Also check that each address serves the shard named in FILE.")
def check(connection: ServerConnection, *, file: Path, ask: bool, probe: bool) -> Output:
    """Check a topology file, and compare it with the servers.

    With --tenants, --url or --profile, the tenants of the server are also checked.

    \b
    Exit codes:
      0  valid
      2  the file is invalid
      6  addresses do not answer
      7  tenants without an eligible shard, or shards that differ from the file
    """
    shards = load_topology(file)
    without: list[dict[str, Any]] = []
    if ask or connection.given & {"url", "profile"}:
        allowed = [(one.name, tuple(one.config.get("regions") or ())) for one in connection.client.tenants()]
        without = [{"tenant": one.tenant, "regions": one.regions} for one in unplaced_tenants(shards, allowed)]
    probed = [_probed(shard, connection) for shard in shards.shards] if probe else []
    regions = {region: sum(one.region == region for one in shards.shards) for region in shards.regions}
    states = {one["state"] for one in probed}
    silent = exit_codes.UNAVAILABLE if "silent" in states else exit_codes.OK
    return Output(
        {"shards": len(shards.shards), "regions": regions, "homeless": without, "probed": probed},
        Table(("region", "shards"), list(regions.items()), ""),
        *(f"tenant {one['tenant']}: no shard in {', '.join(one['regions'])}" for one in without),
        *(f"shard {one['name']}: {one['text']}" for one in probed),
        code=exit_codes.CONFLICT if without or "other" in states else silent,
    )


@server_command(topology)
@click.argument("tenant_name", metavar="TENANT")
@click.argument("queue_name", metavar="[QUEUE]", required=False)
@click.option("--topology", "file", required=True, type=FILE, help="TOML file with the current shards.")
def route(connection: ServerConnection, *, tenant_name: str, queue_name: str | None, file: Path) -> Output:
    """Show the region, shard and address of a tenant and its queues.

    Reads the tenant's allowed regions from the server, and whether QUEUE exists. Exits with 2 if no shard is eligible.
    """
    shards = load_topology(file)
    tenant = connection.client.tenant(tenant_name)
    facts = tenant.get()
    if queue_name is not None:
        tenant.queue(queue_name).stats()
    shard = shards.route(facts.name, tuple(facts.config.get("regions") or ()))
    found = {"tenant": facts.name, "region": shard.region, "shard": shard.name, "address": shard.address}
    return Output(found, found)


@server_command(topology)
@click.option("--from", "from_file", required=True, type=FILE, help="TOML file with the current shards.")
@click.option("--to", "to_file", type=FILE, help="TOML file with the new shards.")
@click.option("--add", type=Count(0), default=0, show_default=False, help="Instead of --to: number of shards to add, spread over the regions.")  # fmt: skip
@click.option("--add-in", multiple=True, callback=shards_by_region, metavar="REGION=N", help="Instead of --to: shards to add in a region, which may be new; repeatable.")  # fmt: skip
@click.option("--ask", "asked", multiple=True, metavar="PROFILE", help="Read tenants from the server of this profile instead of --url; repeatable.")  # fmt: skip
def plan(
    connection: ServerConnection, *, from_file: Path, to_file: Path | None, add: int, add_in: dict[str, int],
    asked: tuple[str, ...],
) -> Output:  # fmt: skip
    """Show which tenants would move to which shard, and the load of each shard.

    Changes nothing. To move a tenant, use 'tenantq migrate'. Exits with 2 if a tenant has no eligible shard.

    \b
    tenantq topology plan --from shards.toml --add 1
    """
    if (to_file is None) == (not add and not add_in):
        raise click.UsageError("Give --to, or --add and --add-in.")
    before = load_topology(from_file)
    for region in add_in:
        check_field("--add-in", region, OptionalRegionName)
    after = load_topology(to_file) if to_file is not None else before.grown(add, add_in)
    tenants = [] if asked else _held(connection.client)
    for name in asked:
        with connection.open_profile(name) as other:
            tenants += _held(other)
    for topology_ in (before, after):
        _check_homes(topology_, tenants)
    found = plan_moves(tenants, before, after)
    counts = ("tenants", "queues", "messages", "bytes")
    shards = [
        (one.name, one.region, *(getattr(one, f"{count}_{when}") for count in counts for when in ("before", "after")))
        for one in found.shards
    ]
    headings = ("shard", "region", *(heading for count in counts for heading in (count, "then")))
    moves = [(one.tenant, one.from_shard, one.to_shard, one.queues, one.messages, one.bytes) for one in found.moves]
    listed = Table(("tenant", "from", "to", "queues", "messages", "bytes"), moves[:_LISTED], "")
    return Output(
        found,
        Table(headings, shards, ""),
        f"{found.moved_tenants} of {found.tenants} tenants would move ({found.moved_share:.1%}),"
        f" {found.moved_queues} queues, {found.moved_messages} messages, {found.moved_bytes} bytes",
        *([listed] if moves else []),
        *([f"and {len(moves) - _LISTED} more; use --json to list all"] if len(moves) > _LISTED else []),
    )


def _probed(shard: TopologyShard, connection: ServerConnection) -> dict[str, object]:
    """Compare the server at a shard's address with the topology."""
    facts: dict[str, object] = {"name": shard.name, "region": shard.region, "address": shard.address}
    if not shard.address:
        return {**facts, "state": "silent", "text": "no address in the file"}
    try:
        with connection.probe(shard.address, _PROBE_MS) as client:
            known = client.topology().shards
    except TenantqError as error:
        return {**facts, "state": "silent", "text": f"{shard.address}: {error.message}"}
    if any((one.name, one.region) == (shard.name, shard.region) for one in known):
        return {**facts, "state": "ok", "text": "matches the file"}
    there = ", ".join(f"{one.name} in {one.region or 'no region'}" for one in known)
    return {
        **facts,
        "state": "other",
        "text": f"{shard.address} is {there}, not {shard.name} in {shard.region or 'no region'}",
    }


def _held(client: Client) -> list[HeldTenant]:
    """Return all tenants of a server with what they hold."""
    found: list[HeldTenant] = []
    for one in client.tenants():
        queues = client.tenant(one.name).queues()
        found.append(
            HeldTenant(
                name=one.name, regions=tuple(one.config.get("regions") or ()), queues=len(queues),
                messages=sum(queue.ready + queue.delayed + queue.in_flight for queue in queues),
                bytes=sum(queue.bytes for queue in queues),
            )
        )  # fmt: skip
    return found


def _check_homes(shards: Topology, tenants: Sequence[HeldTenant]) -> None:
    without = unplaced_tenants(shards, ((one.name, one.regions) for one in tenants))
    if without:
        named = ", ".join(f"{one.tenant} ({', '.join(one.regions)})" for one in without)
        raise Invalid(f"no shard in an allowed region of these tenants: {named}")
