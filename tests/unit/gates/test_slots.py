"""Concurrency slots: no limit is exceeded, waiting is fair and bounded, and no slot leaks."""

import asyncio
import gc
from collections import Counter
from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenantq.domain.rates import Concurrency
from tenantq.errors import Busy
from tenantq.gates.slots import SlotKind, Slots
from tenantq.gates.ticket import Ticket
from tenantq.runtime.clock import ManualClock

WIDE = Concurrency()


async def settle() -> None:
    """Let every task that can continue do so."""
    for _ in range(5):
        await asyncio.sleep(0)


def is_empty(slots: Slots) -> bool:
    """Return whether no state is left."""
    return (
        slots.in_flight == slots.waiting == 0
        and not slots._tickets
        and not slots._waiting
        and not any(scope.in_flight or scope.queues for scope in slots._scopes())
    )


def take(
    slots: Slots,
    tenant: str = "acme",
    queue: str | None = "q",
    kind: SlotKind | None = None,
    concurrency: Concurrency = WIDE,
    connection: Hashable = None,
) -> asyncio.Task[Ticket]:
    """Start a request that takes a slot."""
    return asyncio.ensure_future(slots.take(tenant, queue, kind, concurrency, connection))


@pytest.mark.parametrize(
    ("kind", "concurrency", "options", "same", "named"),
    [
        (None, Concurrency(requests=2), {}, "tenant", "concurrency.requests: 2 requests of this tenant"),
        ("add", Concurrency(adds=2), {}, "queue", "concurrency.adds: 2 adds to this queue"),
        ("poll", Concurrency(polls=2), {}, "queue", "concurrency.polls: 2 polls of this queue"),
        ("poll", WIDE, {"connection_requests": 2}, "connection", "connection_requests: 2 requests on this connection"),
        ("add", WIDE, {"server_requests": 2}, "server", "server_requests: 2 requests to this server"),
    ],
)
async def test_each_limit_holds_and_is_named(
    clock: ManualClock,
    kind: SlotKind | None,
    concurrency: Concurrency,
    options: dict[str, int],
    same: str,
    named: str,
) -> None:
    """The third request waits and is refused after its timeout. Requests under other limits continue."""
    slots = Slots(clock, wait_ms=100, **options)
    tickets = [slots.try_take("acme", "q", kind, concurrency, "wire") for _ in range(2)]
    assert all(tickets)
    assert slots.try_take("acme", "q", kind, concurrency, "wire") is None
    others = {
        "tenant": ("bolt", "q", kind, "wire"),
        "queue": ("acme", "q2", kind, "wire"),
        "connection": ("acme", "q", kind, "wire-2"),
    }
    if same in others:
        tenant, queue, kind_2, wire = others[same]
        other = slots.try_take(tenant, queue, kind_2, concurrency, wire)
        assert other is not None
        other.release()
    third = take(slots, "acme", "q", kind, concurrency, "wire")
    await settle()
    assert slots.waiting == slots._waiting["acme"] == 1
    clock.advance(99)
    await settle()
    assert not third.done()
    clock.advance(1)
    with pytest.raises(Busy) as raised:
        await third
    assert raised.value.message == (
        f"{named} are in flight and none ended within 100 ms. Wait for replies before sending more"
    )
    assert (raised.value.tenant, raised.value.queue, raised.value.status) == ("acme", "q", 503)
    assert raised.value.retry_after_ms == 1_000
    for ticket in tickets:
        assert ticket is not None
        ticket.release()
    assert is_empty(slots)


async def test_adds_and_polls_have_separate_limits(clock: ManualClock) -> None:
    """Other calls count only towards the tenant's requests."""
    slots, narrow = Slots(clock), Concurrency(adds=1, polls=1)
    kinds: list[SlotKind | None] = ["add", "poll", None, None]
    assert all(slots.try_take("acme", "q", kind, narrow) for kind in kinds)
    assert slots.try_take("acme", "q", "add", narrow) is None
    assert slots.try_take("acme", "q", "poll", narrow) is None
    assert slots._tenants.in_flight.get("acme", 0) == 4


async def test_a_released_slot_goes_to_the_first_waiting_request(clock: ManualClock) -> None:
    """Later requests do not overtake it."""
    slots, one = Slots(clock), Concurrency(requests=1)
    held = await take(slots, concurrency=one)
    waiting = [take(slots, concurrency=one) for _ in range(3)]
    await settle()
    for n, request in enumerate(waiting):
        held.release()
        assert slots.try_take("acme", "q", None, one) is None
        await settle()
        assert [one.done() for one in waiting] == [True] * (n + 1) + [False] * (2 - n)
        held = await request
    held.release()
    assert is_empty(slots)
    assert not any(timer.callback for *_, timer in clock._timers)


async def test_a_slot_is_released_once_and_by_a_with_block(clock: ManualClock) -> None:
    """A second release frees no other slot."""
    slots = Slots(clock)
    with await slots.take("acme", "q", "add", WIDE, "wire") as ticket:
        other = await slots.take("acme", "q", "add", WIDE, "wire")
        assert slots.in_flight == 2
    assert not ticket.slots
    ticket.release()
    assert slots.in_flight == 1
    other.release()
    assert is_empty(slots)
    with pytest.raises(ValueError, match="inside"), await slots.take("acme", "q", "add", WIDE):
        raise ValueError("inside")
    assert is_empty(slots)


async def test_a_parked_request_holds_only_its_connection_slot(clock: ManualClock) -> None:
    """An idle long poll does not keep other requests from running."""
    slots, one = Slots(clock, connection_requests=1, server_requests=1), Concurrency(requests=1, polls=1)
    poll = await slots.take("acme", "q", "poll", one, "wire")
    waiting = take(slots, "acme", "q", "poll", one, "wire-2")
    await settle()
    poll.park()
    other = await waiting
    assert slots.try_take("bolt", "q", None, WIDE, "wire") is None
    other.release()
    ticket = slots.try_take("bolt", "q", None, WIDE, "wire-2")
    assert ticket is not None
    poll.park()
    poll.release()
    poll.release()
    ticket.park()
    ticket.release()
    alone = await slots.take("acme", "q", "poll", one)
    alone.park()
    assert not alone.slots
    alone.release()
    assert is_empty(slots)


async def test_tenants_take_turns_regardless_of_their_backlog(clock: ManualClock) -> None:
    """A single waiting request is served within one turn of a tenant with a thousand."""
    slots = Slots(clock, server_requests=1)
    held = await take(slots, "loud")
    served: list[str] = []

    async def request(tenant: str) -> None:
        with await slots.take(tenant, "q", "add", Concurrency(requests=2_000, adds=2_000)):
            served.append(tenant)

    loud = [asyncio.ensure_future(request("loud")) for _ in range(1_000)]
    await settle()
    quiet = [asyncio.ensure_future(request(tenant)) for tenant in ("calm", "mild", "calm")]
    await settle()
    assert slots.waiting == 1_003
    held.release()
    await asyncio.gather(*loud, *quiet)
    assert served[:6] == ["loud", "calm", "mild", "loud", "calm", "loud"]
    assert Counter(served) == {"loud": 1_000, "calm": 2, "mild": 1}
    assert is_empty(slots)


async def test_the_number_of_waiting_requests_is_bounded_per_tenant(clock: ManualClock) -> None:
    """One more is refused at once with the limit's name. Another tenant may still wait."""
    slots = Slots(clock, server_requests=1, waiting_per_tenant=2)
    held = await take(slots)

    async def request(tenant: str) -> None:
        with await slots.take(tenant, "q", "add", WIDE):
            await settle()

    waiting = [asyncio.ensure_future(request("acme")) for _ in range(2)]
    await settle()
    with pytest.raises(Busy, match=r"^server_requests: 1 .* and 2 more requests of this tenant wait already"):
        await slots.take("acme", "q", "add", WIDE)
    waiting.append(asyncio.ensure_future(request("bolt")))
    await settle()
    assert slots.waiting == 3
    held.release()
    await asyncio.gather(*waiting)
    assert is_empty(slots)


async def test_a_full_queue_does_not_block_the_tenants_other_queues(clock: ManualClock) -> None:
    """A full tenant does not block another tenant either."""
    slots, narrow = Slots(clock), Concurrency(requests=3, adds=1)
    first = await take(slots, kind="add", concurrency=narrow)
    blocked = [take(slots, kind="add", concurrency=narrow) for _ in range(5)]
    await settle()
    elsewhere = [slots.try_take("acme", name, "add", narrow) for name in ("q2", "q3")]
    assert all(elsewhere)
    assert slots.try_take("acme", "q4", "add", narrow) is None
    assert slots.try_take("bolt", "q", "add", narrow) is not None
    for request in blocked:
        request.cancel()
    await settle()
    assert slots.waiting == 0
    first.release()


async def test_a_cancelled_waiter_is_removed(clock: ManualClock) -> None:
    """It leaves the line and frees the slots that it already had."""
    slots, narrow = Slots(clock, server_requests=1), Concurrency(requests=2, adds=2)
    held = await take(slots, "other")
    requests = [take(slots, kind="add", concurrency=narrow, connection="wire") for _ in range(3)]
    await settle()
    assert slots._tenants.in_flight.get("acme", 0) == 2
    requests[0].cancel()
    await settle()
    assert slots.waiting == 2
    held.release()
    (await requests[1]).release()
    (await requests[2]).release()
    assert is_empty(slots)


async def test_a_slot_granted_to_a_cancelled_waiter_goes_to_the_next(clock: ManualClock) -> None:
    """Whichever of grant and cancellation came first."""
    for cancel_first in (True, False):
        slots, one = Slots(clock), Concurrency(requests=1)
        held = await take(slots, concurrency=one)
        first, second = take(slots, concurrency=one), take(slots, concurrency=one)
        await settle()
        if cancel_first:
            first.cancel()
        held.release()
        if not cancel_first:
            first.cancel()
        await settle()
        assert first.cancelled()
        (await second).release()
        assert is_empty(slots)


async def test_slots_of_ended_tasks_are_reclaimed(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """Waiting requests get them. Tasks that still run keep theirs."""
    slots, two = Slots(clock), Concurrency(requests=2)

    async def forgetful() -> None:
        await slots.take("acme", "q", "poll", two, "wire")

    async def crashing() -> None:
        await slots.take("acme", "q", "add", two)
        raise ValueError("a bug")

    await asyncio.gather(forgetful(), asyncio.ensure_future(crashing()), return_exceptions=True)
    gc.collect()
    assert slots.in_flight == 2
    waiting = take(slots, concurrency=two)
    await settle()
    assert slots.reconcile() == 2
    assert "2 requests ended without releasing their slots" in caplog.text
    ticket = await waiting
    assert slots.in_flight == 1
    assert slots.try_take("acme", "q", None, two) is not None
    ticket.release()


async def test_reconcile_changes_only_wrong_counts(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """It recounts the slots, and corrects and reports a wrong count."""
    slots = Slots(clock, server_requests=2)
    mine = await slots.take("acme", "q", "add", WIDE, "wire")
    also_mine = await slots.take("acme", "q", "poll", WIDE, "wire")
    waiting = take(slots, kind="add", connection="wire-2")
    await settle()
    assert sum(slots.reconcile() for _ in range(60)) == 0
    assert slots.in_flight == 2
    assert not caplog.records
    slots._server.in_flight["server"] = 3
    also_mine.release()
    await settle()
    assert not waiting.done()
    assert sum(slots.reconcile() for _ in range(60)) == 0
    assert "server_requests: wrong count of requests in flight (counted 2, actual 1)" in caplog.text
    (await waiting).release()
    mine.release()
    assert is_empty(slots)


async def test_a_raised_limit_applies_to_waiting_requests(clock: ManualClock) -> None:
    """It takes effect with the next call that has the new limit."""
    slots = Slots(clock)
    held = await take(slots, concurrency=Concurrency(requests=1))
    waiting = take(slots, concurrency=Concurrency(requests=1))
    await settle()
    later = take(slots, concurrency=Concurrency(requests=3))
    await settle()
    assert waiting.done()
    assert later.done()
    for ticket in (held, await waiting, await later):
        ticket.release()
    assert is_empty(slots)


def test_slots_work_outside_an_event_loop(clock: ManualClock) -> None:
    """There is no task to watch in that case."""
    slots = Slots(clock)
    ticket = slots.try_take("acme", None, None, WIDE)
    assert ticket is not None
    assert ticket.task is None
    assert slots.reconcile() == 0
    ticket.release()
    assert is_empty(slots)


_BOUNDS = Concurrency(requests=5, adds=2, polls=3)
_requests = st.tuples(
    st.sampled_from(["acme", "bolt", "calm"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["add", "poll", None]),
    st.sampled_from(["x", "y", None]),
)
_scripts = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "take", "try", "release", "release", "cancel", "vanish", "pass", "reconcile"]),
        _requests,
        st.integers(0, 1_000),
        st.booleans(),  # let tasks run afterwards
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(script=_scripts)
def test_no_limit_is_exceeded_and_all_counts_end_at_zero(
    script: list[tuple[str, tuple[str, str, SlotKind | None, str | None], int, bool]],
) -> None:
    """Requests may arrive, wait, give up, be cancelled or forget to release."""
    asyncio.run(_play(script))


class _Crowd:
    """Requests that take slots and hold them until the test ends them."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.tasks: list[asyncio.Task[None]] = []
        self.holding: dict[int, tuple[str, str, SlotKind | None, str | None]] = {}
        self.ends: dict[int, asyncio.Future[bool]] = {}
        self.loose: list[Ticket] = []

    def start(self, request: tuple[str, str, SlotKind | None, str | None]) -> None:
        """Start a request."""
        self.tasks.append(asyncio.ensure_future(self._request(len(self.tasks), request)))

    async def _request(self, n: int, request: tuple[str, str, SlotKind | None, str | None]) -> None:
        tenant, queue, kind, connection = request
        ticket = await self.slots.take(tenant, queue, kind, _BOUNDS, connection)
        self.holding[n] = request
        self.check()
        self.ends[n] = asyncio.get_running_loop().create_future()
        try:
            vanish = await self.ends[n]
        except asyncio.CancelledError:
            vanish = n % 2 == 0  # some are cancelled so abruptly that they release nothing
        finally:
            del self.holding[n], self.ends[n]
        if not vanish:
            ticket.release()

    def end(self, number: int, *, vanish: bool) -> None:
        """End one of the requests that hold slots."""
        ends = [end for end in self.ends.values() if not end.done()]
        if ends:
            ends[number % len(ends)].set_result(vanish)

    def check(self) -> None:
        """Recount the held slots and compare them with every limit."""
        held = list(self.holding.values())
        assert len(held) <= 8
        assert all(count <= 5 for count in Counter(tenant for tenant, *_ in held).values())
        for (_, _, kind), count in Counter((tenant, queue, kind) for tenant, queue, kind, _ in held).items():
            assert count <= {"add": 2, "poll": 3}.get(str(kind), 8)
        assert all(n <= 4 for wire, n in Counter(wire for *_, wire in held).items() if wire is not None)
        for scope, most in zip(self.slots._scopes(), (4, 2, 3, 5, 8), strict=True):
            assert all(0 < count <= most for count in scope.in_flight.values())
        counted = [dict(scope.in_flight) for scope in self.slots._scopes()]
        self.slots._recount()
        assert [scope.in_flight for scope in self.slots._scopes()] == counted


async def _play(script: list[tuple[str, tuple[str, str, SlotKind | None, str | None], int, bool]]) -> None:
    clock = ManualClock()
    slots = Slots(clock, server_requests=8, connection_requests=4, waiting_per_tenant=10, wait_ms=2_000)
    crowd = _Crowd(slots)
    for action, request, number, run in script:
        if action == "take":
            crowd.start(request)
        elif action == "try":
            tenant, queue, kind, connection = request
            ticket = slots.try_take(tenant, queue, kind, _BOUNDS, connection)
            if ticket is not None:
                ticket.release()
        elif action in {"release", "vanish"}:
            crowd.end(number, vanish=action == "vanish")
        elif action == "cancel" and crowd.tasks:
            crowd.tasks[number % len(crowd.tasks)].cancel()
        elif action == "pass":
            clock.advance(number)
        elif action == "reconcile":
            slots.reconcile()
        if run:
            await settle()
        crowd.check()
        assert all(slots._waiting[tenant] <= 10 for tenant in ("acme", "bolt", "calm"))
    while not all(task.done() for task in crowd.tasks):
        crowd.end(0, vanish=False)
        clock.advance(100)
        await settle()
        slots.reconcile()
    ended = await asyncio.gather(*crowd.tasks, return_exceptions=True)
    assert all(end is None or isinstance(end, Busy | asyncio.CancelledError) for end in ended)
    slots.reconcile()
    assert is_empty(slots)
