"""``tenantq migrate``: move a tenant from one live server to another."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import click
import msgspec

from tenantq.cli import exit_codes
from tenantq.cli.command_group import Command
from tenantq.cli.confirmation import confirmed_reason, destroys
from tenantq.cli.connection import ServerConnection, connected
from tenantq.cli.options import duration
from tenantq.cli.output import Table, json_option, print_json, print_table
from tenantq.cli.progress import byte_bar
from tenantq.domain.formatting import plural, show_duration
from tenantq.errors import TenantqError
from tenantq.migration import Endpoint, Migration
from tenantq.migration.move import LeasesLeft, MigrationResult, NotSame
from tenantq.migration.plan import MigrationPlan
from tenantq.migration.source import resume_source
from tenantq.migration.target import empty_target
from tenantq.runtime.clock import SystemClock

_SECRETS: Final = ("--token", "--to-token")


@click.command(cls=Command)
@click.argument("name", metavar="TENANT")
@click.option("--to", "profile_name", metavar="PROFILE", help="Profile of the target server.")
@click.option("--to-url", metavar="URL", help="URL of the target server, instead of --to.")
@click.option("--to-token", envvar="TENANTQ_TO_TOKEN", show_envvar=True, metavar="TOKEN", help="Platform administrator's token for the target.")  # fmt: skip
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Move only this queue and its dead letters; repeatable.")  # fmt: skip
@click.option("--as", "new_name", metavar="NAME", help="Tenant name at the target.  [default: the same]")
@click.option("--dry-run", is_flag=True, help="Show what would move and what prevents it, without changes.")
@click.option("--settle", "settle_ms", type=duration, default="30s", help="Time to wait for leases to be settled.")
@click.option("--end-leases", is_flag=True, help="End leases that last longer. Their messages are redelivered at the target.")  # fmt: skip
@click.option("--new-keys", is_flag=True, help="Create API keys with the same names and rights at the target, and print their tokens once.")  # fmt: skip
@click.option("--delete-source", is_flag=True, help="Delete the moved data at the source after cutover.")
@click.option("--abort", is_flag=True, help="Undo a move before cutover: resume the source, empty the target.")
@destroys
@json_option
@connected
def migrate(
    connection: ServerConnection, *, name: str, profile_name: str | None, to_url: str | None, to_token: str | None,
    queues: tuple[str, ...], new_name: str | None, dry_run: bool, settle_ms: int, end_leases: bool, new_keys: bool,
    delete_source: bool, abort: bool, yes: bool, reason: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Move a tenant to another server: plan, fence, copy, verify, cut over.

    The tenant is suspended during the move. Afterwards it works at the target with the same messages, and stays suspended
    at the source. Run the same command to continue an interrupted move, or add --abort to undo it. Requires an
    administrator's token on both servers.

    \b
    tenantq migrate acme --to us-east --dry-run
    tenantq migrate acme --to us-east --new-keys

    \b
    Exit codes:
      0    moved; with --dry-run: nothing prevents the move
      2    wrong usage
      4    a token was refused
      5    a quota of the target refused messages
      6    a server does not answer
      7    the move is blocked, leases remain, or the copies differ; nothing was cut over
      130  interrupted by Ctrl-C
    """
    with ExitStack() as open_clients:
        source = Endpoint("source", connection.client, name)
        client = target = None
        if profile_name is not None and to_url is None:
            client = connection.open_profile(profile_name)
        elif to_url is not None and profile_name is None:
            client = connection.open_url(to_url, to_token)
        elif not abort or to_url is not None:
            raise click.UsageError("Give --to PROFILE, or --to-url and --to-token.")
        if client is not None:
            target = Endpoint("target", open_clients.enter_context(client), new_name or name)
        if abort:
            _abort(source, target, as_json=as_json)
            return
        assert target is not None, "already checked above"
        if new_keys and queues:
            raise click.UsageError("--new-keys cannot be combined with --queue: keys belong to tenants.")
        why = None
        if delete_source and not dry_run:
            what = f"After the move, this deletes {', '.join(queues) or name} at {source.url}"
            why = confirmed_reason(what, name, yes=yes, reason=reason)
        progress = _MigrationProgress()
        move = Migration(
            source, target, queues=queues, delete_source=delete_source, clock=SystemClock(),
            pause=lambda ms: time.sleep(ms / 1_000), on_stage=progress.stage, on_leases=progress.leases,
            on_copy=progress.copy, on_step=progress.step,
        )  # fmt: skip
        plan = move.plan()
        progress.total = plan.messages
        if not as_json:
            _print_plan(plan)
        if dry_run or plan.obstacles:
            if as_json:
                print_json({"plan": plan.summary(), "moved": False})
            if plan.obstacles:
                raise click.exceptions.Exit(exit_codes.CONFLICT)
            return
        with _state_on_failure(move):
            done = _run(move, plan, progress, settle_ms, end_leases=end_leases)
            if new_keys:
                move.new_keys(done)
            if why is not None:
                move.delete(done, why)
        if as_json:
            print_json({"plan": plan.summary(), "moved": True, **msgspec.to_builtins(done)})
        else:
            _print_done(plan, done, target, new_keys=new_keys)


class _MigrationProgress:
    """Shows the progress of a move on stderr: a line for each stage, and a bar on a terminal."""

    def __init__(self) -> None:
        self.total = 0  # messages
        self.bar: Callable[[str, int, int], None] = lambda *_: None

    def stage(self, stage: str) -> None:
        click.echo(f"stage: {stage}", err=True)

    def step(self, step: str) -> None:
        self.bar(step, 0, 0)

    def leases(self, left: int, left_ms: int) -> None:
        self.bar(f"waiting for {left:,} leases, {show_duration(left_ms // 1_000 * 1_000)} left", 0, 0)

    def copy(self, queue: str, messages: int, size: int) -> None:
        self.bar(f"copying {queue}: {messages:,} of {self.total:,} messages", size, 0)


def _run(
    move: Migration, plan: MigrationPlan, progress: _MigrationProgress, settle_ms: int, *, end_leases: bool
) -> MigrationResult:
    """Move. If leases are left, ask whether to end them."""
    try:
        with byte_bar() as progress.bar:
            return move.run(plan, settle_ms=settle_ms, end_leases=end_leases)
    except LeasesLeft as error:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        click.echo(error.message, err=True)
        click.confirm("End them now? Their messages are redelivered at the target.", abort=True, err=True)
    with byte_bar() as progress.bar:
        return move.run(plan, settle_ms=0, end_leases=True)


def _abort(source: Endpoint, target: Endpoint | None, *, as_json: bool) -> None:
    lifted = resume_source(source)
    failure: TenantqError | None = None
    deleted: list[str] = []
    if target is not None:
        try:
            deleted = empty_target(source, target)
        except TenantqError as error:
            failure = error
    if as_json:
        print_json({"lifted": lifted, "deleted": deleted, "target_emptied": target is not None and failure is None})
    else:
        click.echo(
            f"{source.url}: " + (f"{', '.join(lifted)} resumed" if lifted else f"{source.name} was not suspended")
        )
        if target is None:
            click.echo("the target was not emptied. Name it with --to to delete the copied data")
        elif failure is None:
            click.echo(f"{target.url}: " + (f"deleted {', '.join(deleted)}" if deleted else "nothing to delete"))
    if failure is not None:
        failure.args = (
            f"the source resumed, but the target was not emptied. Run the command again: {failure.message}",
        )
        raise failure


@contextmanager
def _state_on_failure(move: Migration) -> Iterator[None]:
    """Print the state of both sides, and how to continue or undo the move, if the move fails."""
    try:
        yield
    except NotSame as error:
        for one in error.found:
            click.echo(
                f"queue {one.queue}: {one.what} {one.source} at the source, {one.target} at the target", err=True
            )
        _print_state(move)
        raise
    except (TenantqError, KeyboardInterrupt, click.Abort):
        _print_state(move)
        raise


def _print_state(move: Migration) -> None:
    where = move.where()
    same = shlex.join(["tenantq", *_without_secrets(sys.argv[1:])])
    click.echo(f"interrupted at: {where['stage']}", err=True)
    click.echo(f"source {move.source.url}: {where['source']}", err=True)
    click.echo(f"target {move.target.url}: {where['target']}", err=True)
    click.echo(f"continue with: {same}", err=True)
    if where["stage"] in ("plan", "fence", "copy", "verify"):
        click.echo(f"undo with: {same} --abort", err=True)


def _without_secrets(arguments: list[str]) -> list[str]:
    """Return the command line without tokens."""
    shown: list[str] = []
    hide = False
    for one in arguments:
        name, equals, _ = one.partition("=")
        shown.append("..." if hide else f"{name}=..." if equals and name in _SECRETS else one)
        hide = one in _SECRETS
    return shown


def _print_plan(plan: MigrationPlan) -> None:
    what = f"tenant {plan.tenant}" if plan.whole_tenant else f"queues of tenant {plan.tenant}"
    to = f"{plan.to_url}" if plan.to_tenant == plan.tenant else f"{plan.to_url} as {plan.to_tenant}"
    click.echo(f"{what} from {plan.from_url} to {to}: {plan.state}")
    rows = [(one.name, one.messages, one.bytes, one.in_flight, one.dead, one.results) for one in plan.queues]
    print_table(Table(("queue", "messages", "bytes", "in flight", "dead", "results"), rows, "no queues"))
    click.echo(
        f"{plural(plan.messages, 'message')}, {plan.bytes:,} bytes, {plan.in_flight:,} in flight; {plural(plan.grants, 'grant')}"
    )
    if plan.encrypted:
        click.echo("encrypted: messages are decrypted at the source and encrypted again at the target")
    if plan.hold:
        click.echo(f"legal hold, applied at the target, too: {plan.hold}")
    if plan.keys:
        click.echo(f"API keys, not moved (see --new-keys): {', '.join(plan.keys)}")
    for text in plan.notes:
        click.echo(f"note: {text}")
    for text in plan.obstacles:
        click.echo(f"blocked: {text}")


def _print_done(plan: MigrationPlan, done: MigrationResult, target: Endpoint, *, new_keys: bool) -> None:
    again = f", {done.skipped_parts} parts already existed" if done.skipped_parts else ""
    click.echo(
        f"moved {plural(done.messages, 'message')} in {plural(done.queues, 'queue')}, {plural(done.grants, 'grant')}{again}; verified"
    )
    click.echo(f"the source is {done.source}")
    click.echo("update your clients:")
    click.echo(f"  address: {target.url}")
    if plan.to_tenant != plan.tenant:
        click.echo(f"  tenant: {plan.to_tenant}")
    for key in done.keys:
        click.echo(f"  token of {key.name}, shown only once: {key.token}")
    for name in done.keys_there:
        click.echo(f"  token of {name}: the target already has a key of this name")
    if plan.keys and not new_keys:
        click.echo(
            "  tokens: keys of the source are not valid at the target; create new ones with --new-keys or 'tenantq key create'"
        )
