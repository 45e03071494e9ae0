"""A shard with gates and a service in front of it, as in a server, on a clock that tests advance."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tenantq.domain.access import Grant
from tenantq.domain.containment import Containment
from tenantq.gates.authenticate import Authenticator
from tenantq.gates.signals import SignalSettings
from tenantq.service.admission import Admission
from tenantq.service.call import Call
from tenantq.service.encryption import MessageEncryption
from tenantq.service.gate_settings import GateSettings
from tenantq.service.service import Service
from tenantq.vault.stored_keys import StoredDataKeys
from tenantq.vault.vault import Vault
from tests.shards import journal_rows, message, wait_until_idle

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tenantq.domain.message import AddResult, Delivery
    from tenantq.engine.redrive_task import RedriveFilter
    from tenantq.engine.shard import Shard
    from tenantq.gates.json_web_token import JwtVerifier
    from tenantq.journal.record import JournalRow
    from tenantq.runtime.clock import ManualClock
    from tenantq.service.redrives import RedriveInfo

ADMIN_TOKEN = "the-platform-itself-" + "0" * 20
REASON = "because a test says so"
SETTINGS = GateSettings(
    refusal_rows_per_second=10_000,  # each refusal is journaled at once, in its own row
    signals=SignalSettings(denials_per_minute=100_000, cross_tenant_per_minute=100_000),
)


class ServiceHarness:
    """Everything behind the transports, with shortcuts for tests."""

    def __init__(
        self, shard: Shard, clock: ManualClock, settings: GateSettings = SETTINGS, jwt: JwtVerifier | None = None
    ) -> None:
        self.shard = shard
        self.clock = clock
        self.background: set[asyncio.Task[None]] = set()
        self.failures: list[BaseException] = []
        self.admission = Admission(shard, clock, settings, self._in_background, jwt=jwt)
        book = StoredDataKeys(shard)
        self.encryption = MessageEncryption(shard, Vault(book, {}, clock), book, clock, providers={})  # without a key
        self.service = Service(shard, self.admission, clock, self.encryption)
        self.admin = Call(bearer=ADMIN_TOKEN, remote="10.0.0.1", request_id="r-admin")

    async def open(self) -> ServiceHarness:
        """Create the platform administrator."""
        await self.service.access.bootstrap(ADMIN_TOKEN)
        return self

    async def close(self) -> None:
        """Journal pending rows; check that no background task failed and no slot is lost."""
        await self.wait_until_idle()
        await self.service.close()
        await self.admission.close()
        await self.wait_until_idle()
        assert not self.failures, self.failures
        assert (self.admission.slots.in_flight, self.admission.slots.waiting) == (0, 0)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.background.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(error)

    async def wait_until_idle(self) -> None:
        """Wait until nothing is left to do at this clock time."""
        while self.background:
            await asyncio.gather(*self.background, return_exceptions=True)
        await wait_until_idle(self.shard)

    async def pass_time(self, ms: int) -> None:
        """Advance the clock, and wait until everything due by then has happened."""
        await self.wait_until_idle()
        self.clock.advance(ms)
        await self.wait_until_idle()

    # ---- callers ----

    def call(self, token: str | None, **fields: Any) -> Call:
        """Return a call with ``token``."""
        return Call(bearer=token, **{"remote": "10.1.2.3", "request_id": "r-1", "user_agent": "test", **fields})

    async def tenant(self, name: str, **changes: Any) -> str:
        """Create a tenant, or change it."""
        await self.service.tenants.put(self.admin, name, changes)
        return name

    async def key(self, tenant: str, role: str | None = "tenant-admin", **grant: Any) -> Call:
        """Return a call with a new key of a tenant."""
        made = await self.service.access.create_key(self.admin, tenant, "a key", Grant(role=role, **grant))
        return self.call(made.token)

    async def key_and_id(self, tenant: str, role: str | None = "tenant-admin", **grant: Any) -> tuple[Call, str]:
        """Return a call with a new key of a tenant, and the key's ID."""
        made = await self.service.access.create_key(self.admin, tenant, "a key", Grant(role=role, **grant))
        return self.call(made.token), made.key_id

    # ---- work ----

    async def add(
        self, call: Call, queue: str, *bodies: str, tenant: str | None = None, **fields: Any
    ) -> list[AddResult]:
        """Add messages to a queue of the caller's tenant."""
        return await self.service.messages.add(
            call, tenant, queue, [message(body, **fields) for body in bodies or ("body",)]
        )

    async def take(self, call: Call, queue: str, max: int = 1, **options: Any) -> list[Delivery]:
        """Poll a queue of the caller's tenant."""
        return await self.service.messages.poll(call, None, queue, max=max, **options)

    async def redrive(self, call: Call, queue: str, filter: RedriveFilter) -> RedriveInfo:
        """Redrive dead letters and return the outcome."""
        started = await self.service.redrives.start(call, None, queue, filter=filter)
        await self.wait_until_idle()
        ended = await self.service.redrives.get(call, None, queue, started.id)
        assert ended.state == "done"
        return ended

    # ---- the journal ----

    async def rows(self, after: int = 0, **wanted: Any) -> list[JournalRow]:
        """Return the journal rows after a record, by default of all tenants."""
        await self.wait_until_idle()
        return await journal_rows(self.shard, after, **wanted)

    async def journal_end(self) -> int:
        """Return the number of the last record."""
        await self.wait_until_idle()
        return self.shard.journal.span[1]


def suspension(tenant: str, key_id: str, *, dry_run: bool = False) -> Containment:
    """Return a containment that suspends a key, as an alert creates it."""
    return Containment(
        action="suspend_key", tenant=tenant, principal=f"key:{key_id}", alert="denials", text="a test", dry_run=dry_run,
        ops_per_sec=1, created_at=0, until=1 << 42,
    )  # fmt: skip


def forget_credentials(harness: ServiceHarness) -> None:
    """Make the gate verify every credential again."""
    old = harness.admission.authenticator
    harness.admission.authenticator = Authenticator(harness.shard.state.access, harness.clock, old._jwt)
