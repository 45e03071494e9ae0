"""Sign-ups: request, approve, reject. Rows and journal entry share a commit."""

from dataclasses import dataclass

from tenantq.domain.signup import Signup, SignupRequest
from tenantq.engine.access_store import PLATFORM
from tenantq.engine.arguments import ReasonArgument
from tenantq.engine.effects import Effects
from tenantq.engine.operation import Operation
from tenantq.errors import NotFound, QuotaExceeded


@dataclass(eq=False)
class RequestSignup(Operation[Signup]):
    """Store a sign-up that waits for a decision."""

    request: SignupRequest
    waiting_max: int
    journal_op = "request_signup"

    def execute(self, effects: Effects) -> None:
        """Store it. Raises QuotaExceeded if too many wait. The journal does not show the contact."""
        signups, most = effects.state.signups, self.waiting_max
        if len(signups.of(PLATFORM)) >= most:
            raise QuotaExceeded("sign-ups: too many are pending. Try again later.", limit=most, current=most)
        id = f"{effects.seq}-{len(effects.entries)}"
        created_at = effects.now + effects.wall
        self.reply = Signup(id=id, request=self.request, remote=self.caller.remote, created_at=created_at)
        signups.put(effects.batch, PLATFORM, id, self.reply)
        effects.log_tenant(self.journal_op, self.tenant, self.caller, f"{id}: tenant {self.request.tenant}")


@dataclass(eq=False)
class RejectSignup(Operation[Signup]):
    """Delete a sign-up that is rejected. Replies what it was."""

    id: str
    reason: ReasonArgument = ""
    journal_op = "reject_signup"

    def execute(self, effects: Effects) -> None:
        self.reply = _take(effects, self, self.reason)


@dataclass(eq=False)
class ApproveSignup(Operation[Signup]):
    """Delete a sign-up whose tenant exists now. Replies what it was."""

    id: str
    journal_op = "approve_signup"

    def execute(self, effects: Effects) -> None:
        self.reply = _take(effects, self)


def _take(effects: Effects, step: RejectSignup | ApproveSignup, reason: str = "") -> Signup:
    """Delete and return a sign-up. Raises NotFound if somebody else has decided."""
    signups = effects.state.signups
    found = signups.of(PLATFORM).get(step.id)
    if found is None:
        raise NotFound(f"sign-up {step.id[:80]!r} does not exist, or is already approved or rejected")
    signups.drop(effects.batch, PLATFORM, step.id)
    details = f"{step.id}: tenant {found.request.tenant}{reason and f': {reason}'}"
    effects.log_tenant(step.journal_op, step.tenant, step.caller, details)
    return found
