"""``tenantq topology``: shards and regions, where a tenant belongs among them, and what another topology would move."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from tenantq.cli import exit_codes
from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, connected, open_profile
from tenantq.cli.options import FILE, shards_by_region
from tenantq.cli.output import Columns, Output, Table, prints_output, table
from tenantq.client import Client
from tenantq.domain.formatting import show_time
from tenantq.domain.names import OptionalRegionName
from tenantq.domain.placement import HeldTenant, Topology, TopologyShard, load_topology, plan_moves, unplaced_tenants
from tenantq.domain.validation import check_field
from tenantq.errors import Invalid, TenantqError

_PROBE_MS: Final = 5_000
_LISTED: Final = 50


@click.group(cls=CommandGroup)
def topology() -> None:
    """Shards and their regions: which there are, where a tenant belongs, what another topology would move."""


@topology.command()
@prints_output
@connected
def show(connection: ServerConnection) -> Output:
    """Show the shards that the server knows."""
    known = connection.client.topology()
    columns: Columns = {"name": "name", "region": "region", "address": lambda one: one.address or connection.target.url}
    facts = {"server": known.server, "version": known.version, "format": known.format, "time": show_time(known.now)}
    return Output(known, table(columns, known.shards, "no shards"), {**facts, "encryption": known.encryption})


@topology.command()
@click.argument("file", type=FILE)
@click.option("--tenants", "ask", is_flag=True, help="Also ask the server for tenants that no shard of FILE may hold.")
@click.option("--probe", is_flag=True, help="Also ask every shard at its address whether it is the one that FILE says.")
@prints_output
@connected
def check(connection: ServerConnection, *, file: Path, ask: bool, probe: bool) -> Output:
    """Check a topology: that it is valid, and what the servers say to it.

    With --tenants, or where --url or --profile is given, the server at hand is asked for its tenants.

    \b
    Exit codes:
      0  all is well
      2  the file is wrong
      6  addresses that do not answer, and nothing worse
      7  tenants that no shard may hold, or shards that are not what the file says
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
        *(f"tenant {one['tenant']}: no shard is in {', '.join(one['regions'])}" for one in without),
        *(f"shard {one['name']}: {one['text']}" for one in probed),
        code=exit_codes.CONFLICT if without or "other" in states else silent,
    )


@topology.command()
@click.argument("tenant_name", metavar="TENANT")
@click.argument("queue_name", metavar="[QUEUE]", required=False)
@click.option("--topology", "file", required=True, type=FILE, metavar="FILE", help="The shards there are, TOML.")
@prints_output
@connected
def route(connection: ServerConnection, *, tenant_name: str, queue_name: str | None, file: Path) -> Output:
    """Tell the region, shard and address where a tenant belongs, and with it every queue of it.

    The server at hand is asked for the regions that it allows, and whether it has QUEUE. Exit code 2 where no shard is in one of them.
    """
    shards = load_topology(file)
    tenant = connection.client.tenant(tenant_name)
    facts = tenant.get()
    if queue_name is not None:
        tenant.queue(queue_name).stats()
    shard = shards.route(facts.name, tuple(facts.config.get("regions") or ()))
    found = {"tenant": facts.name, "region": shard.region, "shard": shard.name, "address": shard.address}
    return Output(found, found)


@topology.command()
@click.option("--from", "from_file", required=True, type=FILE, metavar="FILE", help="The shards there are, TOML.")
@click.option("--to", "to_file", type=FILE, metavar="FILE", help="The shards there would be.")
@click.option("--add", type=click.IntRange(0), default=0, metavar="N", help="Instead: so many more, over its regions in turn.")  # fmt: skip
@click.option("--add-in", multiple=True, callback=shards_by_region, metavar="REGION=N", help="Instead: so many more in a region, new or not. Can be given again.")  # fmt: skip
@click.option("--ask", "asked", multiple=True, metavar="PROFILE", help="Ask the server of this profile for its tenants, not the one at hand. Can be given again.")  # fmt: skip
@prints_output
@connected
def plan(
    connection: ServerConnection, *, from_file: Path, to_file: Path | None, add: int, add_in: dict[str, int],
    asked: tuple[str, ...],
) -> Output:  # fmt: skip
    """Tell which tenants would move to which shard, and what each shard would hold.

    Nothing is changed; 'tenantq migrate' moves, from server to server. Exit code 2 where a tenant has no shard.

    \b
    tenantq topology plan --from shards.toml --add 1
    """
    if (to_file is None) == (not add and not add_in):
        raise click.UsageError("Give --to, or --add and --add-in.")
    before = load_topology(from_file)
    for region in add_in:
        check_field("--add-in", region, OptionalRegionName)
    after = load_topology(to_file) if to_file is not None else before.grown(add, add_in)
    tenants: list[HeldTenant] = []
    if asked:
        for name in asked:
            with open_profile(name, connection.timeout_ms) as other:
                tenants += _held(other)
    else:
        tenants = _held(connection.client)
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
        *([f"and {len(moves) - _LISTED} more; all of them with --json"] if len(moves) > _LISTED else []),
    )


def _probed(shard: TopologyShard, connection: ServerConnection) -> dict[str, object]:
    """Return what the server at a shard's address says of itself."""
    told: dict[str, object] = {"name": shard.name, "region": shard.region, "address": shard.address}
    if not shard.address:
        return {**told, "state": "silent", "text": "the file has no address for it"}
    client = connection.for_address(shard.address, _PROBE_MS)
    try:
        with client:
            known = client.topology().shards
    except TenantqError as error:
        return {**told, "state": "silent", "text": f"{shard.address}: {error.message}"}
    if any((one.name, one.region) == (shard.name, shard.region) for one in known):
        return {**told, "state": "ok", "text": "is what the file says"}
    there = ", ".join(f"{one.name} in {one.region or 'no region'}" for one in known)
    return {
        **told,
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
        raise Invalid(f"no shard is in a region that these tenants allow: {named}")
