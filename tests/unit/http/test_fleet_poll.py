"""A poll over several shards that ends early: what was leased for it goes back, also what was on its way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tenantq.http.fleet_poll import FleetPoll
from tenantq.http.reply import Reply, json_reply
from tenantq.wire.messages import DeliveredItem, PollReply

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Server:
    """Everything of a server that a poll needs to give back what it has: who is told, and of what."""

    def __init__(self) -> None:
        self.back: list[tuple[int, dict[tuple[str, str], list[str]]]] = []
        self.tasks: list[asyncio.Task[None]] = []
        gates = SimpleNamespace(in_background=self._begin)
        self.listener = SimpleNamespace(service=SimpleNamespace(gates=gates, fellows=self))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def put_back(self, shard: int, leased: dict[tuple[str, str], list[str]]) -> None:
        self.back.append((shard, leased))

    @staticmethod
    def reply_of(request: object, shard: int, question: object, answer: Reply) -> Reply:  # noqa: ARG004  # as it is asked
        return answer


class Share:
    """One that another shard was asked for."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.stops: list[bool] = []

    def stop(self, *, is_gone: bool) -> None:
        self.stops.append(is_gone)


def _leased(tenant: str) -> Reply:
    item = DeliveredItem(
        id="0" * 32, receipt=f"of {tenant}", body="x", attempt=1, priority=1, attributes={}, added_at=1, lease_until=2, tenant=tenant,
        queue="mail",
    )  # fmt: skip
    return json_reply(PollReply(messages=[item]))


async def test_what_was_leased_for_a_client_that_left_goes_back() -> None:
    """What had come, and what comes when the shards are told to stop; nobody's answer is thrown away."""
    server, first, second = Server(), Share(), Share()
    poll = FleetPoll(server, None, 0)  # type: ignore[arg-type]  # all of it that is asked
    poll._delivered.append((0, _leased("mine")))
    poll._asked.update({1: first, 2: second})  # type: ignore[dict-item]  # as above
    poll.give_up()
    assert (first.stops, second.stops) == ([False], [False])
    first.answer.set_result(_leased("theirs"))
    second.answer.set_result(Reply(b'{"messages":[]}'))
    await asyncio.gather(*server.tasks)
    assert server.back == [(0, {("mine", "mail"): ["of mine"]}), (1, {("theirs", "mail"): ["of theirs"]})]
    poll.give_up()
    assert len(server.tasks) == 1
