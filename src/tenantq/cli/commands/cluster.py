"""``tenantq cluster``: the members and shards of a cluster."""

import click

from tenantq.cli import exit_codes
from tenantq.cli.command_group import CommandGroup
from tenantq.cli.connection import ServerConnection, server_command
from tenantq.cli.output import Columns, Output, list_output, table, time_of
from tenantq.domain.formatting import plural

_LOAD = ("load", lambda one: f"{one.load:.2f}")
_STATE = ("state", lambda one: "draining" if one.draining else "assigner" if one.assigner else "member")
_MEMBERS: Columns = [
    ("member", "id"),
    "url",
    "region",
    "shards",
    _LOAD,
    _STATE,
    ("since", time_of("joined_at")),
    "version",
]
_SHARDS: Columns = [("shard", "number"), "region", "owner", "epoch", _LOAD, "moving to"]
_MOVES: Columns = ["tenant", "queue", ("from", "source"), ("to", "target"), "stage", "rows", "problem"]


@click.group(cls=CommandGroup)
def cluster() -> None:
    """Show the members and shards of a cluster, drain members, and add shards."""


@server_command(cluster)
def status(connection: ServerConnection) -> Output:
    """Show whether every shard is served, the members, and the tenants that move between shards.

    \b
    Exit codes:
      0  every shard has an owner
      7  shards have no owner, or the server cannot read the cluster's rows
    """
    found = connection.client.platform().cluster()
    homeless = [one.number for one in found.shards if one.owner is None]
    moving = [one.number for one in found.shards if one.moving_to is not None and one.owner is not None]
    facts = {
        "cluster": found.id,
        "members": len(found.members),
        "draining": ", ".join(one.id for one in found.members if one.draining) or "none",
        "shards": len(found.shards),
        "moving": ", ".join(map(str, moving)) or "none",
        "without owner": ", ".join(map(str, homeless)) or "none",
    }
    moves = [table(_MOVES, found.moves, "")] if found.moves else []
    code = exit_codes.CONFLICT if homeless or found.problem else exit_codes.OK
    members = table(_MEMBERS, found.members, "no members")
    return Output(found, facts, members, *moves, *([found.problem] if found.problem else []), code=code)


@server_command(cluster)
def members(connection: ServerConnection) -> Output:
    """List the members with their shards and load."""
    return list_output("members", connection.client.platform().cluster().members, _MEMBERS)


@server_command(cluster)
def shards(connection: ServerConnection) -> Output:
    """List the shards with their owners and moves."""
    return list_output("shards", connection.client.platform().cluster().shards, _SHARDS)


@server_command(cluster)
@click.argument("member_id", metavar="MEMBER")
@click.option("--undo", is_flag=True, help="Assign shards to the member again.")
def drain(connection: ServerConnection, *, member_id: str, undo: bool) -> Output:
    """Hand all shards of a member over to others.

    Returns immediately; check progress with 'tenantq cluster members'. A stopping server drains itself.

    \b
    Exit codes:
      0  the shards are moving to other members
      7  no other member can take some of them; the member serves these until one can
    """
    found = connection.client.platform().drain_member(member_id, drain=not undo)
    if undo:
        return Output(found, f"member {member_id} can own shards again")
    regions = {one.region for one in found.members if one.id != member_id and not one.draining}
    owned = [one for one in found.shards if one.owner == member_id]
    kept = sum(one.region not in regions if one.region else not regions for one in owned)
    moving = f"member {member_id} is handing over {plural(len(owned) - kept, 'shard')}"
    if not kept:
        return Output(found, moving)
    keeps = f"member {member_id} still serves {plural(kept, 'shard')} because no other member can take over"
    text = [keeps] if kept == len(owned) else [moving, keeps]
    return Output(found, *text, code=exit_codes.CONFLICT)


@server_command(cluster)
@click.argument("count", type=click.IntRange(1), metavar="SHARDS")
@click.option("--dry-run", is_flag=True, help="Check the change without applying it.")
def grow(connection: ServerConnection, *, count: int, dry_run: bool) -> Output:
    """Raise the number of shards of a cluster.

    Running members take over the new shards immediately. Existing tenants do not move. The number cannot be reduced.
    """
    found = connection.client.platform().grow_cluster(count, dry_run=dry_run)
    return Output(found, f"the cluster {'would have' if dry_run else 'has'} {plural(count, 'shard')}")
