"""The actions of the console. Each asks first if it should, reports its result, and refreshes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from textual.binding import Binding
from textual.dom import DOMNode

from tenantq.client import AsyncQueue
from tenantq.console.dialog import Dialog
from tenantq.console.tenant_settings import FormField, changed_settings, check_destroy, form_fields
from tenantq.domain.names import check_tenant_name
from tenantq.errors import Conflict, NotFound
from tenantq.wire.queues import QueueReply, RedriveReply
from tenantq.wire.tenants import TenantReply

if TYPE_CHECKING:
    from tenantq.console.app import ConsoleApp

T = TypeVar("T")

_REDRIVE_POLL_S: Final = 0.1
_REDRIVE_POLLS_MAX: Final = 300  # a longer redrive continues on the server


def console_of(node: DOMNode) -> ConsoleApp:
    """Return the console that a widget or screen belongs to."""
    return cast("ConsoleApp", node.app)


# ---- queues ----


async def pause_or_resume(console: ConsoleApp, tenant: str, queue: QueueReply) -> None:
    """Pause deliveries of a queue, or resume them."""
    target = console.client.tenant(tenant).queue(queue.name)
    if queue.status == "paused":
        await console.perform(target.resume(), lambda _: f"resumed {queue.name}")
    else:
        await console.perform(target.pause(), lambda _: f"paused {queue.name}: messages can be added, polls wait")


async def purge(console: ConsoleApp, tenant: str, queue: QueueReply) -> None:
    """Empty a queue after the user typed its name and a reason."""
    count = queue.ready + queue.delayed + queue.in_flight
    text = f"This deletes {count:,} messages of queue {queue.name}. This cannot be undone."
    fields = [FormField("confirm", "queue name"), FormField("reason", "reason", hint="at least 10 characters")]
    reason = await _ask(console, "Purge", text, fields, lambda typed: check_destroy(queue.name, typed), done="Purge")
    if reason is not None:
        work = console.client.tenant(tenant).queue(queue.name).purge(confirm=queue.name, reason=reason)
        await console.perform(work, lambda purged: f"purged {purged:,} messages of {queue.name}")


async def redrive(console: ConsoleApp, tenant: str, queue: QueueReply) -> None:
    """Redrive all dead letters of a queue."""
    await redrive_messages(console, tenant, queue.name, None)


async def redrive_messages(console: ConsoleApp, tenant: str, queue: str, ids: Sequence[str] | None) -> None:
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
    ending = {"running": "; it continues on the server", "failed": "; then it failed"}.get(task.state, "")
    return f"moved {task.moved:,} dead letters{skipped}{ending}"


QUEUE_ACTIONS: Final = {"pause": pause_or_resume, "redrive": redrive, "purge": purge}
QUEUE_BINDINGS: Final = [Binding(key, f"queue('{name}')", name) for key, name in zip("pdx", QUEUE_ACTIONS, strict=True)]
"""The keys of a widget with an ``action_queue`` that runs one of ``QUEUE_ACTIONS``."""


# ---- tenants ----


async def edit_tenant(console: ConsoleApp, tenant: TenantReply) -> None:
    """Change a tenant's weight, quotas and limits. Only changed settings are sent."""
    text = "An empty field means no limit. Only changed fields are sent."
    fields, title = form_fields(tenant.config), f"Settings of {tenant.name}"
    changes = await _ask(
        console, title, text, fields, lambda typed: changed_settings(tenant.config, typed), done="Save"
    )
    if changes:
        work = console.client.tenant(tenant.name).configure(**changes)
        await console.perform(work, lambda _: f"changed {tenant.name}: {', '.join(_names(changes))}")
    elif changes is not None:
        console.say("nothing was changed")


async def create_tenant(console: ConsoleApp) -> None:
    """Create a tenant and show it."""
    fields = [
        FormField("name", "name", hint="a-z, 0-9, -; 3 to 32"),
        *form_fields({"weight": 1, "quotas": {"soft_percent": 80}}),
    ]

    def check(typed: dict[str, str]) -> tuple[str, dict[str, Any]]:
        return check_tenant_name(typed["name"].strip()), changed_settings({}, typed)

    wanted = await _ask(console, "New tenant", "", fields, check, done="Create")
    if wanted is None:
        return
    name, settings = wanted
    if await console.perform(_create(console, name, settings), lambda _: f"created tenant {name}") is not None:
        console.choose(name)


async def _create(console: ConsoleApp, name: str, settings: dict[str, Any]) -> TenantReply:
    target = console.client.tenant(name)
    try:
        await target.get()
    except NotFound:
        return await target.configure(**settings)
    raise Conflict(f"tenant {name} already exists; select it with t and edit it with e", tenant=name)


async def suspend_or_resume(console: ConsoleApp, tenant: TenantReply) -> None:
    """Suspend a tenant, with a reason for the journal, or resume it."""
    target = console.client.tenant(tenant.name)
    if tenant.status == "suspended":
        text = "Adds and polls work again."
        if await _confirm(console, f"Resume {tenant.name}", text, "Resume"):
            await console.perform(target.resume(), lambda _: f"resumed {tenant.name}")
        return
    text = "Adds and polls are refused. Leased messages can still be settled."
    fields, title = [FormField("reason", "reason", hint="stored in the journal")], f"Suspend {tenant.name}"
    reason = await _ask(console, title, text, fields, lambda typed: typed["reason"].strip(), done="Suspend")
    if reason is not None:
        await console.perform(target.suspend(reason), lambda _: f"suspended {tenant.name}")


TENANT_ACTIONS: Final = {"edit": edit_tenant, "suspend": suspend_or_resume}


# ---- access ----


async def revoke_key(console: ConsoleApp, tenant: str, key_id: str, name: str) -> bool:
    """Revoke a key after a confirmation. Returns whether it was revoked."""
    text = f"Key {name} ({key_id}) of {tenant} stops working immediately. This cannot be undone."
    revoke = console.client.tenant(tenant).revoke_key
    return await _revoke(console, "Revoke key", text, lambda: revoke(key_id), f"revoked key {name}")


async def revoke_grant(console: ConsoleApp, tenant: str, principal: str) -> bool:
    """Revoke the grant of a principal after a confirmation. Returns whether it was revoked."""
    text = f"{principal} loses its grant in {tenant}."
    revoke = console.client.tenant(tenant).revoke_grant
    done = f"revoked the grant of {principal} in {tenant}"
    return await _revoke(console, "Revoke grant", text, lambda: revoke(principal), done)


async def _revoke(console: ConsoleApp, title: str, text: str, revoke: Callable[[], Awaitable[None]], done: str) -> bool:
    async def work() -> bool:
        await revoke()
        return True

    return await _confirm(console, title, text, "Revoke") and await console.perform(work(), lambda _: done) is not None


# ---- questions ----


async def _ask(
    console: ConsoleApp,
    title: str,
    text: str,
    fields: Sequence[FormField],
    check: Callable[[dict[str, str]], T],
    *,
    done: str,
) -> T | None:
    return await console.push_screen_wait(Dialog(title, text, fields, check, done=done))


async def _confirm(console: ConsoleApp, title: str, text: str, yes: str) -> bool:
    return bool(await _ask(console, title, text, [], lambda _: True, done=yes))


def _names(changes: dict[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted names of nested settings."""
    names: list[str] = []
    for name, value in changes.items():
        names += _names(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}"]
    return names
