"""The actions of the console. Each asks first if it should, reports its result, and refreshes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

from textual.binding import Binding

from tenantq.client import AsyncQueue
from tenantq.console.context import ConsoleContext
from tenantq.console.dialogs import Dialog, TokenScreen
from tenantq.console.queue_rows import plan_lines
from tenantq.console.tenant_settings import REASON, FormField, changed_settings, check_destroy, form_fields, with_reason
from tenantq.domain.formatting import dotted, parse_duration, plural, preview, printable, show_time
from tenantq.domain.names import check_tenant_name
from tenantq.errors import Conflict, Invalid, NotFound
from tenantq.wire.alerts import ContainmentItem
from tenantq.wire.queues import QueueReply, RedriveReply
from tenantq.wire.signups import SignupItem
from tenantq.wire.templates import AppliedItem
from tenantq.wire.tenants import TenantReply

T = TypeVar("T")

_NOTE_CHARS: Final = 300  # of a sign-up, shown in a dialog
_REDRIVE_POLL_S: Final = 0.1
_REDRIVE_POLLS_MAX: Final = 300  # a longer redrive continues on the server


# ---- queues ----


async def pause_or_resume(console: ConsoleContext, tenant: str, queue: QueueReply) -> None:
    """Pause deliveries of a queue, or resume them."""
    target = console.client.tenant(tenant).queue(queue.name)
    if queue.status == "paused":
        await console.perform(target.resume(), lambda _: f"resumed {queue.name}")
    else:
        await console.perform(target.pause(), lambda _: f"paused {queue.name}: messages can be added, polls wait")


async def purge(console: ConsoleContext, tenant: str, queue: QueueReply) -> None:
    """Empty a queue after the user typed its name and a reason."""
    count = queue.ready + queue.delayed + queue.in_flight
    text = f"This deletes {plural(count, 'message')} of queue {queue.name}. This cannot be undone."
    fields = [FormField("confirm", "queue name"), FormField("reason", "reason", hint="at least 10 characters")]
    reason = await _ask(console, "Purge", text, fields, lambda typed: check_destroy(queue.name, typed), done="Purge")
    if reason is not None:
        work = console.client.tenant(tenant).queue(queue.name).purge(confirm=queue.name, reason=reason)
        await console.perform(work, lambda purged: f"purged {plural(purged, 'message')} of {queue.name}")


async def redrive(console: ConsoleContext, tenant: str, queue: QueueReply) -> None:
    """Redrive all dead letters of a queue."""
    await redrive_messages(console, tenant, queue.name, None)


async def redrive_messages(console: ConsoleContext, tenant: str, queue: str, ids: Sequence[str] | None) -> None:
    """Count the dead letters that would be redriven, ask, and redrive them; ``ids`` None means all."""
    target = console.client.tenant(tenant).queue(queue)
    found = await console.read(_finished(target, dry_run=True, ids=ids))
    if found is None:
        return
    if not found.moved:
        console.say(f"{queue} has no dead letters to redrive")
        return
    skipped = f" Skips {found.skipped:,}." if found.skipped else ""
    text = f"Moves {found.moved:,} dead letters back to the queues they came from.{skipped}"
    if await _confirm(console, f"Redrive {queue}", text, "Redrive"):
        await console.perform(_finished(target, dry_run=False, ids=ids), _redriven)


async def _finished(queue: AsyncQueue, *, dry_run: bool, ids: Sequence[str] | None) -> RedriveReply:
    """Start a redrive, and return its status when it is done or takes too long to wait for."""
    task = await queue.redrive(dry_run=dry_run, ids=ids)
    for _ in range(_REDRIVE_POLLS_MAX):
        if task.state != "running":
            break
        await asyncio.sleep(_REDRIVE_POLL_S)
        task = await queue.redrive_status(task.task)
    return task


def _redriven(task: RedriveReply) -> str:
    skipped = f", skipped {task.skipped:,}" if task.skipped else ""
    endings = {
        "running": "; it continues on the server",
        "failed": "; then it failed",
        "cancelled": "; then it was cancelled",
    }
    return f"moved {task.moved:,} dead letters{skipped}{endings.get(task.state, '')}"


async def delete_message(console: ConsoleContext, tenant: str, queue: str, id: str) -> bool:
    """Delete a message after a confirmation. Returns whether it was deleted."""
    if not await _confirm(console, "Delete message", f"Deletes {id} from {queue}. This cannot be undone.", "Delete"):
        return False
    removed = await console.perform(
        console.client.tenant(tenant).queue(queue).remove(id),
        lambda found: f"deleted {id}" if found[0] else f"not deleted: {id} no longer exists",
    )
    return bool(removed and removed[0])


async def ask_message_id(console: ConsoleContext, queue: str) -> str | None:
    """Return the message ID that the user types, or None."""

    def check(typed: dict[str, str]) -> str:
        try:
            return str(UUID(typed["id"].strip()))
        except ValueError:
            raise Invalid("id: must be a UUID") from None

    return await _ask(console, f"Find a message of {queue}", "", [FormField("id", "message ID")], check, done="Find")


QUEUE_ACTIONS: Final = {"pause": pause_or_resume, "redrive": redrive, "purge": purge}
QUEUE_BINDINGS: Final = [
    Binding("p", "queue('pause')", "pause", tooltip="pause or resume deliveries"),
    Binding("d", "queue('redrive')", "redrive", tooltip="redrive dead letters: counts them, then asks"),
    Binding("x", "queue('purge')", "purge", tooltip="purge: asks for the name and a reason"),
]
"""The keys of a widget with an ``action_queue`` that runs one of ``QUEUE_ACTIONS``."""


# ---- tenants ----


async def edit_tenant(console: ConsoleContext, tenant: TenantReply) -> None:
    """Change a tenant's weight, quotas, limits and alerts, with a reason. Only changed settings are sent."""
    text = "An empty field means no limit. Only changed fields are sent."
    fields, changes = form_fields(tenant.config), partial(changed_settings, tenant.config)
    await _ask_changes(console, tenant.name, f"Settings of {tenant.name}", text, fields, changes, done="Save")


async def apply_plan(console: ConsoleContext, tenant: TenantReply) -> None:
    """Give a tenant the weight, quotas and limits of a plan, with a reason."""
    plans = await console.read(console.client.platform().plans())
    if plans is None:
        return
    text = "\n".join(["Replaces weight, quotas and rate limits.", "", *plan_lines(plans, tenant.config.get("plan"))])

    def changes(typed: dict[str, str]) -> dict[str, Any]:
        return {"plan": _one_of(typed, "plan", [one.name for one in plans])}

    fields = [FormField("plan", "plan")]
    await _ask_changes(console, tenant.name, f"Plan of {tenant.name}", text, fields, changes, done="Apply")


async def silence(console: ConsoleContext, tenant: str) -> None:
    """Silence the alerts of a tenant for a while."""
    text = "The alerts stay listed. Those still active afterwards are sent then."

    def changes(typed: dict[str, str]) -> dict[str, Any]:
        return {"alerts": {"silenced_until": console.reader.clock.wall_ms() + _length_ms(typed)}}

    fields = [FormField("length", "for", "1h", "30m, 2h or 1d")]
    await _ask_changes(console, tenant, f"Silence alerts of {tenant}", text, fields, changes, done="Silence")


async def unsilence(console: ConsoleContext, tenant: str) -> None:
    """End the silence of a tenant."""
    await _configure(console, tenant, {"alerts": {"silenced_until": None}})


async def _ask_changes(
    console: ConsoleContext, tenant: str, title: str, text: str, fields: Sequence[FormField],
    changes: Callable[[dict[str, str]], dict[str, Any]], *, done: str,
) -> None:  # fmt: skip
    """Ask for changes of a tenant and a reason, and send them. ``changes`` returns those that the user typed."""

    def check(typed: dict[str, str]) -> dict[str, Any]:
        return with_reason(changes(typed), typed)

    wanted = await _ask(console, title, text, [*fields, REASON], check, done=done)
    if wanted is not None:
        await _configure(console, tenant, wanted)


async def _configure(console: ConsoleContext, tenant: str, changes: dict[str, Any]) -> None:
    if not changes:
        console.say("nothing was changed")
        return
    names = ", ".join(name for name, _ in dotted(changes) if name != "reason")
    await console.perform(console.client.tenant(tenant).configure(**changes), lambda _: f"changed {tenant}: {names}")


async def create_tenant(console: ConsoleContext) -> None:
    """Create a tenant and show it."""
    fields = [FormField("name", "name", hint="a-z, 0-9, -; 3 to 32"), *form_fields({}, unset="the plan's value")]
    text = "An empty field means the value of the default plan."

    def check(typed: dict[str, str]) -> tuple[str, dict[str, Any]]:
        return check_tenant_name(typed["name"].strip()), changed_settings({}, typed)

    wanted = await _ask(console, "New tenant", text, fields, check, done="Create")
    if wanted is None:
        return
    name, settings = wanted
    if await console.perform(_create(console, name, settings), lambda _: f"created tenant {name}") is not None:
        console.choose(name)


async def _create(console: ConsoleContext, name: str, settings: dict[str, Any]) -> TenantReply:
    target = console.client.tenant(name)
    try:
        await target.get()
    except NotFound:
        return await target.configure(**settings)
    raise Conflict(f"tenant {name} already exists; select it with t and edit it with e", tenant=name)


async def suspend_or_resume(console: ConsoleContext, tenant: TenantReply) -> None:
    """Suspend a tenant, with a reason for the journal, or resume it."""
    target = console.client.tenant(tenant.name)
    if tenant.status == "suspended":
        text = "Adds and polls work again."
        if await _confirm(console, f"Resume {tenant.name}", text, "Resume"):
            await console.perform(target.resume(), lambda _: f"resumed {tenant.name}")
        return
    text = "Adds and polls are refused. Leased messages can still be settled."
    reason = await _ask_reason(console, f"Suspend {tenant.name}", text, done="Suspend")
    if reason is not None:
        await console.perform(target.suspend(reason), lambda _: f"suspended {tenant.name}")


TENANT_ACTIONS: Final = {"edit": edit_tenant, "plan": apply_plan, "suspend": suspend_or_resume}
TENANT_BINDINGS: Final = [
    Binding("e", "tenant('edit')", "edit", tooltip="edit weight, quotas, limits and alerts"),
    Binding("p", "tenant('plan')", "plan", tooltip="apply a plan"),
    Binding("u", "tenant('suspend')", "suspend", tooltip="suspend or resume"),
]
"""The keys of a widget with an ``action_tenant`` that runs one of ``TENANT_ACTIONS``."""


# ---- onboarding ----


async def approve_signup(console: ConsoleContext, signup: SignupItem) -> None:
    """Create the tenant of a sign-up with a plan and a template, and show the token of its first key once."""
    platform = console.client.platform()
    found = await console.read(asyncio.gather(platform.plans(), platform.templates()))
    if found is None:
        return
    plans, templates = [one.name for one in found[0]], [one.name for one in found[1] if not one.owner]
    text = f"{preview(signup.contact.encode())} asks for it from {signup.remote}.\n{preview(signup.note.encode(), _NOTE_CHARS)}"
    fields = [
        FormField("plan", "plan", signup.plan or "", f"the default, or {', '.join(plans)}"),
        FormField("template", "template", hint=", ".join(["none", *templates])),
    ]

    def check(typed: dict[str, str]) -> dict[str, str | None]:
        return {"plan": _one_of(typed, "plan", ["", *plans]), "template": _one_of(typed, "template", ["", *templates])}

    wanted = await _ask(console, f"Approve tenant {signup.tenant}", text.rstrip(), fields, check, done="Approve")
    if wanted is None:
        return
    work = platform.approve_signup(signup.id, **wanted)
    made = await console.perform(work, lambda made: f"created tenant {made.tenant}")
    if made is not None:
        text = f"For {preview(made.contact.encode())}. This token of the first key is shown only once:"
        if made.applied:
            text = f"Template: {show_outcomes(made.applied)}.\n{text}"
        await console.push_screen_wait(TokenScreen(f"Tenant {made.tenant}", text, made.token))


async def reject_signup(console: ConsoleContext, signup: SignupItem) -> None:
    """Reject a sign-up, with a reason for the audit trail."""
    text = f"{preview(signup.contact.encode())} gets no tenant."
    reason = await _ask_reason(console, f"Reject tenant {signup.tenant}", text, done="Reject")
    if reason is not None:
        work = console.client.platform().reject_signup(signup.id, reason=reason)
        await console.perform(work, lambda _: f"rejected the sign-up for tenant {signup.tenant}")


def show_outcomes(applied: Iterable[AppliedItem]) -> str:
    """Return how many queues had each outcome, such as "2 created, 1 refused"."""
    counts = Counter(one.outcome for one in applied)
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "nothing to change"


# ---- access ----


async def release_containment(console: ConsoleContext, containment: ContainmentItem) -> None:
    """Release a containment early, after a confirmation."""
    what = printable(f"{containment.action.replace('_', ' ')} {containment.principal or containment.tenant}")
    why = f"{' (dry run)' if containment.dry_run else ''} because of {printable(containment.text)}"
    text = f"{what}{why}\nIt ends now instead of {show_time(containment.until)[:16]}."
    if await _confirm(console, "Release", text, "Release"):
        work = console.client.platform().release_containment(containment.id)
        await console.perform(work, lambda _: f"released: {what}")


async def revoke_key(console: ConsoleContext, tenant: str, key_id: str, name: str) -> bool:
    """Revoke a key after a confirmation. Returns whether it was revoked."""
    text = f"Key {name} ({key_id}) of {tenant} stops working immediately. This cannot be undone."
    revoke = partial(console.client.tenant(tenant).revoke_key, key_id)
    return await _confirm(console, "Revoke key", text, "Revoke") and await _revoke(console, revoke, f"key {name}")


async def revoke_grant(console: ConsoleContext, tenant: str, principal: str) -> bool:
    """Revoke the grant of a principal after a confirmation. Returns whether it was revoked."""
    text = f"{principal} loses its grant in {tenant}."
    revoke, what = (
        partial(console.client.tenant(tenant).revoke_grant, principal),
        f"the grant of {principal} in {tenant}",
    )
    return await _confirm(console, "Revoke grant", text, "Revoke") and await _revoke(console, revoke, what)


async def revoke_tokens(console: ConsoleContext, tenant: str, principal: str) -> bool:
    """Refuse all tokens of a principal of a tenant for some time. Returns whether they were revoked."""
    text = f"All tokens of {principal} stop working in {tenant} and wherever it has grants. Choose at least their lifetime."
    fields, title = [FormField("length", "for", "1d", "1h, 7d")], "Revoke tokens"
    length_ms = await _ask(console, title, text, fields, _length_ms, done="Revoke")
    if length_ms is None:
        return False
    until = console.reader.clock.wall_ms() + length_ms
    revoke = partial(console.client.tenant(tenant).revoke_token, principal=principal, until=until)
    return await _revoke(console, revoke, f"the tokens of {principal}")


async def _revoke(console: ConsoleContext, revoke: Callable[[], Awaitable[None]], what: str) -> bool:
    """Revoke a right. Returns whether that succeeded."""

    async def work() -> bool:
        await revoke()
        return True

    return await console.perform(work(), lambda _: f"revoked {what}") is not None


# ---- questions ----


def _one_of(typed: dict[str, str], field: str, names: Sequence[str]) -> str | None:
    """Return the typed name, or None if it is empty and ``names`` allows that. Raises Invalid."""
    name = typed[field].strip()
    if name not in names:
        raise Invalid(f"{field}: must be one of {', '.join(filter(None, names)) or 'none'}")
    return name or None


def _length_ms(typed: dict[str, str]) -> int:
    length_ms = parse_duration(typed["length"].strip())
    if not length_ms:
        raise Invalid("for: must be a duration such as 30m, 2h or 1d")
    return length_ms


async def _ask(
    console: ConsoleContext,
    title: str,
    text: str,
    fields: Sequence[FormField],
    check: Callable[[dict[str, str]], T],
    *,
    done: str,
) -> T | None:
    return await console.push_screen_wait(Dialog(title, text, fields, check, done=done))


async def _ask_reason(console: ConsoleContext, title: str, text: str, *, done: str) -> str | None:
    return await _ask(console, title, text, [REASON], lambda typed: typed["reason"].strip(), done=done)


async def _confirm(console: ConsoleContext, title: str, text: str, yes: str) -> bool:
    return bool(await _ask(console, title, text, [], lambda _: True, done=yes))
