"""Contain a credential or a tenant because of an alert, and release it. Rows and journal entry share a commit."""

from dataclasses import dataclass

from msgspec.structs import replace

from tenantq.domain.containment import Containment
from tenantq.engine.access_store import PLATFORM
from tenantq.engine.effects import Effects
from tenantq.engine.operation import Operation
from tenantq.engine.ops.suspension import freeze, resume
from tenantq.engine.queue_state import TenantState
from tenantq.errors import Conflict, NotFound


def _subject(effects: Effects, tenant: str) -> tuple[TenantState, int]:
    """Return the contained tenant, or the platform, and its id in rows."""
    if not tenant:
        return effects.state.platform, PLATFORM
    found = effects.state.catalog.tenant(tenant)
    return found, found.id


@dataclass(eq=False)
class Contain(Operation[None]):
    """Do what a rule says, or with ``dry_run`` only store and journal it. Does nothing if the same is in force."""

    containment: Containment
    journal_op = "contain"

    @property
    def subject(self) -> str:
        """What was to be contained."""
        return self.containment.what

    def execute(self, effects: Effects) -> None:
        """Store the containment and apply it. Raises Conflict if that would lock an administrator out."""
        access, one = effects.state.access, self.containment
        tenant, tenant_id = _subject(effects, one.tenant)
        if any(one.is_like(other) and other.until > one.created_at for _, other in access.containments.values()):
            return
        if one.action == "freeze_tenant":
            _check_freezable(tenant)
        else:
            _check_no_last_administrator(effects, tenant_id, one)
        one = replace(one, id=f"{tenant_id}-{effects.seq}-{len(effects.entries)}")
        access.put_containment(effects.batch, tenant_id, one)
        if one.action == "freeze_tenant" and not one.dry_run:
            freeze(effects, tenant, self.caller, one.freeze_reason)
        effects.log_tenant("contain", tenant, self.caller, str(one))


def _check_freezable(tenant: TenantState) -> None:
    """Raise Conflict for a tenant whose suspension has another reason: a release would end it."""
    if not tenant.name or tenant.status == "suspended" or tenant.erasing is not None:
        raise Conflict("the tenant is suspended or being deleted", tenant=tenant.name or None)


def _check_no_last_administrator(effects: Effects, tenant_id: int, one: Containment) -> None:
    """Raise Conflict for an administrator of the platform and for the last administrator key of a tenant.

    Raises NotFound for a key that does not exist any more.
    """
    access, now = effects.state.access, effects.now + effects.wall
    key = access.keys(tenant_id).get(one.key_id)
    if one.key_id and (key is None or key.is_over(now)):
        raise NotFound("the key does not exist, or is not valid any more", tenant=one.tenant or None)
    administrators = access.administrators(tenant_id, now)
    if tenant_id == PLATFORM and (key is None or key.id in administrators):
        raise Conflict("administrators of the platform are never contained")
    if administrators == {one.key_id}:
        raise Conflict("this is the last administrator key of the tenant, which is never contained", tenant=one.tenant)


@dataclass(eq=False)
class ReleaseContainment(Operation[Containment]):
    """End a containment. Replies what it was."""

    id: str
    reason: str = "released"
    journal_op = "release_containment"

    def execute(self, effects: Effects) -> None:
        """Delete the containment and undo what it did. A suspension that an administrator has replaced stays."""
        access = effects.state.access
        _, one = access.containments.get(self.id, (None, None))
        if one is None:
            raise NotFound(f"containment {self.id[:80]!r} does not exist, or has ended")
        tenant, _ = _subject(effects, one.tenant)
        access.drop_containment(effects.batch, self.id)
        if tenant.suspension is not None and tenant.suspension.reason == one.freeze_reason and tenant.erasing is None:
            resume(effects, tenant)
        effects.log_tenant("release_containment", tenant, self.caller, f"{self.reason}: {one}")
        self.reply = one
