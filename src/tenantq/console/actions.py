"""What can be done from the console. Each asks first where it should, says what came of it, and refreshes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from tenantq.console.confirm_dialog import ConfirmDialog
from tenantq.console.form_dialog import FormDialog
from tenantq.console.tenant_settings import (
    Field,
    changed_settings,
    check_destroy,
    check_new_tenant,
    form_fields,
)
from tenantq.errors import Conflict, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from textual.dom import DOMNode

    from tenantq.client import AsyncQueue
    from tenantq.console.app import ConsoleApp
    from tenantq.wire import QueueReply, RedriveReply, TenantReply

if TYPE_CHECKING:
    TenantAct = Callable[[ConsoleApp, TenantReply], Awaitable[None]]

_LOOK_EVERY_S: Final = 0.1
_LOOKS_MAX: Final = 300  # a redrive that takes longer goes on by itself


def console_of(node: DOMNode) -> ConsoleApp:
    """Return the console that a widget or screen belongs to."""
    return cast("ConsoleApp", node.app)


async def pause_or_resume(console: ConsoleApp, tenant: str, queue: QueueReply) -> None:
    """Stop deliveries of a queue, or start them again."""
    there = console.client.tenant(tenant).queue(queue.name)
    if queue.status == "paused":
        await console.perform(there.resume(), lambda _: f"{queue.name} delivers again")
    else:
        await console.perform(there.pause(), lambda _: f"paused {queue.name}: adding goes on, polls wait")


async def purge(console: ConsoleApp, tenant: str, queue: QueueReply) -> None:
    """Empty a queue, once its name and a reason were typed."""
    count = queue.ready + queue.delayed + queue.in_flight
    text = f"This deletes {count:,} messages of queue {queue.name}. It cannot be undone."
    fields = [Field("confirm", "its name, again"), Field("reason", "reason", hint="ten characters or more")]
    dialog = FormDialog("Purge", text, fields, lambda typed: check_destroy(queue.name, typed), done="Purge")
    reason = await console.push_screen_wait(dialog)
    if reason is not None:
        there = console.client.tenant(tenant).queue(queue.name)
        await console.perform(
            there.purge(confirm=queue.name, reason=reason), lambda purged: f"purged {purged:,} messages of {queue.name}"
        )


async def redrive(console: ConsoleApp, tenant: str, queue: str, ids: Sequence[str] | None = None) -> None:
    """Count the dead letters that would go back, ask, and send them."""
    there = console.client.tenant(tenant).queue(queue)
    counted = await console.read(_finished(there, dry_run=True, ids=ids))
    if counted is None:
        return
    if not counted.moved:
        console.say(f"{queue} has no dead letters that could go back")
        return
    skipped = f" {counted.skipped:,} are skipped." if counted.skipped else ""
    text = f"{counted.moved:,} dead letters would go back where they came from.{skipped}"
    if await console.push_screen_wait(ConfirmDialog(f"Redrive {queue}", text, "Redrive")):
        await console.perform(_finished(there, dry_run=False, ids=ids), _redriven)


async def edit_tenant(console: ConsoleApp, tenant: TenantReply) -> None:
    """Change a tenant's weight, quotas and limits; only what was changed is sent."""
    text = "An empty field is no limit. Only what you change is sent."
    dialog = FormDialog(
        f"Settings of {tenant.name}",
        text,
        form_fields(tenant.config),
        lambda typed: changed_settings(tenant.config, typed),
        done="Save",
    )
    changes = await console.push_screen_wait(dialog)
    if changes is None:
        return
    if not changes:
        console.say("nothing was changed")
        return
    await console.perform(
        console.client.tenant(tenant.name).configure(**changes), lambda _: f"changed {tenant.name}: {_named(changes)}"
    )


async def create_tenant(console: ConsoleApp) -> None:
    """Make a tenant and show it."""
    fields = [
        Field("name", "name", hint="a-z, 0-9, -; 3 to 32"),
        *form_fields({"weight": 1, "quotas": {"soft_percent": 80}}),
    ]
    dialog = FormDialog("New tenant", "", fields, _new_tenant, done="Create")
    made = await console.push_screen_wait(dialog)
    if made is None:
        return
    name, changes = made
    if await console.perform(_create(console, name, changes), lambda _: f"made tenant {name}") is not None:
        console.choose(name)


async def suspend_or_resume(console: ConsoleApp, tenant: TenantReply) -> None:
    """Stop a tenant's work, with a reason for the journal, or let it work again."""
    there = console.client.tenant(tenant.name)
    if tenant.status == "suspended":
        text = "It takes new messages and hands them out again."
        if await console.push_screen_wait(ConfirmDialog(f"Resume {tenant.name}", text, "Resume")):
            await console.perform(there.resume(), lambda _: f"{tenant.name} works again")
        return
    text = "It takes no new messages and hands none out; what is leased may finish."
    fields = [Field("reason", "reason", hint="kept in the journal")]
    dialog = FormDialog(f"Suspend {tenant.name}", text, fields, lambda typed: typed["reason"].strip(), done="Suspend")
    reason = await console.push_screen_wait(dialog)
    if reason is not None:
        await console.perform(there.suspend(reason), lambda _: f"suspended {tenant.name}")


async def revoke_key(console: ConsoleApp, tenant: str, key_id: str, name: str) -> bool:
    """Refuse a key from now on, once asked; tell whether that was done."""
    text = f"Key {name} ({key_id}) of {tenant} is refused from now on. It cannot be undone."
    if not await console.push_screen_wait(ConfirmDialog("Revoke key", text, "Revoke")):
        return False
    work = _done(console.client.tenant(tenant).revoke_key(key_id))
    return await console.perform(work, lambda _: f"revoked key {name}") is not None


async def revoke_grant(console: ConsoleApp, tenant: str, principal: str) -> bool:
    """Take back what a principal was granted in a tenant, once asked; tell whether that was done."""
    text = f"What {principal} was granted in {tenant} is taken back."
    if not await console.push_screen_wait(ConfirmDialog("Revoke grant", text, "Revoke")):
        return False
    work = _done(console.client.tenant(tenant).revoke_grant(principal))
    return await console.perform(work, lambda _: f"revoked the grant of {principal} in {tenant}") is not None


async def _done(work: Any) -> bool:
    """Wait for a call that returns nothing; True tells it from one that failed."""
    await work
    return True


async def _finished(queue: AsyncQueue, *, dry_run: bool, ids: Sequence[str] | None) -> RedriveReply:
    """Begin a redrive and return how it stands when it is done, or after a while."""
    task = await queue.redrive(dry_run=dry_run, ids=ids)
    for _ in range(_LOOKS_MAX):
        if task.state != "running":
            break
        await asyncio.sleep(_LOOK_EVERY_S)
        task = await queue.redrive_status(task.task)
    return task


def _redriven(task: RedriveReply) -> str:
    text = f"sent back {task.moved:,} dead letters"
    if task.skipped:
        text += f", skipped {task.skipped:,}"
    return f"{text} so far; it goes on" if task.state == "running" else text


def _new_tenant(typed: dict[str, str]) -> tuple[str, dict[str, Any]]:
    return check_new_tenant(typed), changed_settings({}, typed)


async def _create(console: ConsoleApp, name: str, changes: dict[str, Any]) -> TenantReply:
    there = console.client.tenant(name)
    try:
        await there.get()
    except NotFound:
        return await there.configure(**changes)
    raise Conflict(f"there is a tenant {name} already; choose it with t and edit it with e", tenant=name)


def _named(changes: dict[str, Any], prefix: str = "") -> str:
    names: list[str] = []
    for name, value in changes.items():
        names.append(_named(value, f"{prefix}{name}.") if isinstance(value, dict) else f"{prefix}{name}")
    return ", ".join(names)
