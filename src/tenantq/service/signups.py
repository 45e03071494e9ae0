"""Sign-ups: anyone may ask for a tenant if the server allows it, administrators decide."""

from collections import Counter
from typing import Final

from tenantq.domain import limits
from tenantq.domain.signup import Signup, SignupRequest, SignupSettings
from tenantq.domain.validation import check_field, projected, validated
from tenantq.engine.access_store import PLATFORM
from tenantq.engine.ops.signup import ApproveSignup, RejectSignup, RequestSignup
from tenantq.engine.shard import Shard
from tenantq.errors import NotFound, RateLimited
from tenantq.gates.authorize import ANONYMOUS
from tenantq.gates.signals import HOUR_MS, place_of
from tenantq.runtime.clock import Clock
from tenantq.service.admission import Admission
from tenantq.service.call import Call
from tenantq.wire.signups import SignupItem, SignupsReply

NETWORKS_MAX: Final = 10_000
"""Networks whose sign-ups of an hour are counted. Others are refused for the rest of the hour."""


class Signups:
    """Keeps pending sign-ups. The first shard has them."""

    def __init__(self, shard: Shard, admission: Admission, clock: Clock, settings: SignupSettings) -> None:
        self._shard, self._admission, self._clock, self._settings = shard, admission, clock, settings
        self._hour = 0
        self._counts: Counter[str] = Counter()  # by network, of this hour

    async def request(self, call: Call, request: SignupRequest) -> SignupItem:
        """Store a sign-up of a caller without a credential. The reply is the same whether or not the tenant exists.

        Raises NotFound if the server does not allow it, RateLimited and QuotaExceeded.
        """
        if not self._settings.enabled:
            raise NotFound("sign-ups are disabled on this server")
        validated(request)
        caller = call.caller(ANONYMOUS)
        with self._admission.notes.noting_failure(caller, "", RequestSignup.journal_op):
            self._count(place_of(call.remote))
        platform, waiting_max = self._shard.state.platform, self._settings.waiting_max
        return _item(await self._shard.submit(RequestSignup(platform, caller, request, waiting_max)))

    def _count(self, network: str) -> None:
        hour, since_ms = divmod(self._clock.monotonic_ms(), HOUR_MS)
        if hour != self._hour:
            self._hour = hour
            self._counts.clear()
        most, used = self._settings.per_hour, self._counts[network]
        if used >= most or (not used and len(self._counts) >= NETWORKS_MAX):
            raise RateLimited(
                f"sign-ups: at most {most} an hour from one network. Try again later.",
                limit=most, current=used, retry_after_ms=HOUR_MS - since_ms,
            )  # fmt: skip
        self._counts[network] += 1

    async def list(self, call: Call) -> SignupsReply:
        """Return the pending sign-ups, oldest first."""
        caller = await self._admission.admit_platform(call, "list_signups")
        self._admission.notes.note_view(caller, "", "list_signups")
        found = sorted(self._shard.state.signups.of(PLATFORM).values(), key=lambda one: one.created_at)
        return SignupsReply(signups=[_item(one) for one in found])

    async def get(self, call: Call, id: str) -> SignupItem:
        """Return a sign-up for its approval. Raises NotFound."""
        check_field("id", id, limits.PrincipalName)
        caller = await self._admission.admit_platform(call, "approve_signup")
        with self._admission.notes.noting_failure(caller, "", "approve_signup"):
            found = self._shard.state.signups.of(PLATFORM).get(id)
            if found is None:
                raise NotFound(f"sign-up {id[:80]!r} does not exist, or is already approved or rejected")
        return _item(found)

    async def approve(self, call: Call, id: str) -> None:
        """Delete a sign-up whose tenant exists now."""
        check_field("id", id, limits.PrincipalName)
        caller = await self._admission.admit_platform(call, "approve_signup")
        await self._shard.submit(ApproveSignup(self._shard.state.platform, caller, id))

    async def reject(self, call: Call, id: str, reason: str = "") -> SignupItem:
        """Delete a sign-up, and return it. Raises NotFound."""
        check_field("id", id, limits.PrincipalName)
        caller = await self._admission.admit_platform(call, "reject_signup")
        return _item(await self._shard.submit(RejectSignup(self._shard.state.platform, caller, id, reason)))


def _item(one: Signup) -> SignupItem:
    return projected(SignupItem, one.request, id=one.id, remote=one.remote, created_at=one.created_at)
