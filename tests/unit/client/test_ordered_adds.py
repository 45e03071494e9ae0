"""add_many keeps the order of its messages under limits and with invalid messages among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenantq.client.ordered_adds import OrderedAdds
from tenantq.client.queue_calls import QueueCalls
from tenantq.client.session import ClientSession
from tenantq.client.settings import NO_RETRIES, Retries
from tenantq.errors import Forbidden, Invalid, RateLimited, TenantqError
from tests.unit.client.doubles import ScriptedTransport, make_settings, problem, reply

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tenantq.client.connection_pool import ApiRequest
    from tenantq.client.http_connection import HttpReply
    from tenantq.client.values import Added

BAD: Final = object()


class LimitedQueue:
    """A queue behind a token bucket like the server's: all of a request or nothing, with the time to retry."""

    def __init__(self, per_sec: int, burst: int, **changes: Any) -> None:
        session = ClientSession(make_settings(**changes), ScriptedTransport(self.answer))
        self.calls = QueueCalls(session, "/v1/queues/mail", None, "mail")
        self.clock = session.clock
        self.per_sec, self.burst = per_sec, burst
        self.tokens = float(burst)
        self.at_ms = self.clock.monotonic_ms()
        self.back_at_ms = 0
        self.bodies: list[str] = []
        self.requests = self.hasty = 0

    def answer(self, request: ApiRequest[Any]) -> HttpReply:
        """Accept a request, or say when to retry it, or that it can never succeed."""
        messages = [one["body"] for one in msgspec.json.decode(request.body or b"")["messages"]]
        now = self.clock.monotonic_ms()
        self.requests += 1
        self.tokens = min(self.burst, self.tokens + (now - self.at_ms) * self.per_sec / 1_000)
        self.at_ms = now
        if len(messages) > self.burst:
            return problem("too_large", 413)
        if len(messages) > self.tokens:
            self.back_at_ms = now + int((len(messages) - self.tokens) * 1_000 / self.per_sec) + 1
            return problem("rate_limited", 429, retry_after_ms=self.back_at_ms - now)
        self.hasty += now < self.back_at_ms
        self.tokens -= len(messages)
        self.bodies += messages
        return reply({"messages": [{"id": f"id-{body}"} for body in messages]})

    async def add_many(self, messages: Iterable[object]) -> list[Added]:
        """Add messages as a client does."""
        adds = OrderedAdds(self.calls)
        for batch in adds.batches(messages):
            await adds.send(batch)
        return adds.results("return")


async def test_order_is_kept_under_a_rate_limit() -> None:
    """Requests larger than the burst are split, and each part waits as long as the server asks."""
    queue = LimitedQueue(per_sec=20, burst=20, retries=Retries())
    bodies = [f"{n:02}" for n in range(50)]
    outcomes = await queue.add_many(bodies)
    assert queue.bodies == bodies
    assert [one.id for one in outcomes] == [f"id-{body}" for body in bodies]
    assert queue.requests < 15
    assert not queue.hasty


async def test_a_thousand_at_two_hundred_a_second_take_few_requests() -> None:
    """None of them fails, although each waits for those before it."""
    queue = LimitedQueue(per_sec=200, burst=200, retries=Retries())
    bodies = [f"{n:04}" for n in range(1_000)]
    outcomes = await queue.add_many(bodies)
    assert queue.bodies == bodies
    assert not [one for one in outcomes if one.error is not None]
    assert queue.requests < 40


async def test_requests_are_made_smaller_if_the_wait_would_be_too_long() -> None:
    """Fifty messages at one a second all pass under a policy that waits at most five seconds."""
    queue = LimitedQueue(per_sec=1, burst=50, retries=Retries())
    queue.tokens = 0
    bodies = [f"{n:02}" for n in range(50)]
    assert not [one for one in await queue.add_many(bodies) if one.error is not None]
    assert queue.bodies == bodies


@given(
    count=st.integers(1, 60),
    bad=st.sets(st.integers(0, 59)),
    per_sec=st.integers(1, 50),
    burst=st.integers(1, 30),
)
@settings(max_examples=100, deadline=None)
async def test_valid_messages_are_added_once_and_in_order_under_any_limit(
    count: int, bad: set[int], per_sec: int, burst: int
) -> None:
    """Every outcome is at the position of its message."""
    queue = LimitedQueue(per_sec, burst, retries=Retries())
    outcomes = await queue.add_many(BAD if n in bad else f"{n}" for n in range(count))
    assert queue.bodies == [f"{n}" for n in range(count) if n not in bad]
    assert [one.id if one.error is None else None for one in outcomes] == [
        None if n in bad else f"id-{n}" for n in range(count)
    ]


async def test_nothing_is_sent_after_giving_up_on_a_limit() -> None:
    """The added messages are reported. The others each have the limit's error, and no later one overtook them."""
    queue = LimitedQueue(per_sec=1, burst=4, retries=NO_RETRIES)
    outcomes = await queue.add_many([f"{n}" for n in range(1_500)])
    assert queue.bodies == ["0", "1", "2", "3"]
    errors = [one.error for one in outcomes[4:]]
    assert {type(error) for error in errors} == {RateLimited}
    assert len({id(error) for error in errors}) == 1_496
    assert len(outcomes) == 1_500


async def test_a_message_that_fails_the_whole_request_is_isolated() -> None:
    """It is found by halving, and the others keep their order."""
    seen: list[str] = []

    def answer(request: ApiRequest[Any]) -> HttpReply:
        messages = [one["body"] for one in msgspec.json.decode(request.body or b"")["messages"]]
        if "poison" in messages:
            return problem("invalid", 422)
        seen.extend(messages)
        return reply({"messages": [{"id": body} for body in messages]})

    queue = LimitedQueue(1, 1)
    queue.calls = QueueCalls(ClientSession(make_settings(), ScriptedTransport(answer)), "/v1/queues/mail", None, "mail")
    outcomes = await queue.add_many(["a", "b", "poison", "c", "d"])
    assert seen == ["a", "b", "c", "d"]
    assert [type(one.error) for one in outcomes] == [type(None), type(None), Invalid, type(None), type(None)]


async def test_an_error_about_the_queue_is_raised_with_the_progress() -> None:
    """Nothing is sent after it."""
    transport = ScriptedTransport(reply({"messages": [{"id": "x"}] * 1_000}), problem("forbidden", 403))
    queue = LimitedQueue(1, 1)
    queue.calls = QueueCalls(ClientSession(make_settings(), transport), "/v1/queues/mail", None, "mail")
    with pytest.raises(Forbidden) as caught:
        await queue.add_many([f"{n}" for n in range(3_000)])
    assert caught.value.__notes__ == ["1000 earlier messages were sent"]
    assert len(transport.requests) == 2


class UnserializableModel:
    """A model that cannot be serialized, like some pydantic models."""

    def model_dump_json(self) -> str:
        """Fail with an error of the model's own."""
        raise KeyError("unable to serialize unknown type")


async def test_a_model_that_cannot_be_serialized_fails_alone() -> None:
    """Its error is at its position."""
    queue = LimitedQueue(10, 10)
    outcomes = await queue.add_many(["a", UnserializableModel(), "b"])
    assert queue.bodies == ["a", "b"]
    assert [type(one.error) for one in outcomes] == [type(None), Invalid, type(None)]


def test_errors_are_raised_or_returned() -> None:
    """The first one is raised, with a note on the others."""
    adds = OrderedAdds(LimitedQueue(1, 1).calls)
    assert list(adds.batches([BAD, BAD])) == []
    with pytest.raises(Invalid) as caught:
        adds.results("raise")
    assert "2 failed" in caught.value.__notes__[0]
    assert all(isinstance(one.error, TenantqError) for one in adds.results("return"))
