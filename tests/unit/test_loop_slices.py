"""Long work is sliced on the event loop."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from tenantq.http.reply import list_reply
from tenantq.runtime.loop_slices import (
    JOINED_AT_ONCE_BYTES,
    SLICE_BYTES,
    SLICE_ITEMS,
    convert,
    joined,
    loop_slices,
    next_slice,
    slices_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future


def test_a_slice_is_limited_in_items_and_bytes() -> None:
    """Whichever limit is reached first; no item is lost."""
    assert [len(part) for part in slices_of([1] * (2 * SLICE_ITEMS + 1), lambda _: 0)] == [SLICE_ITEMS, SLICE_ITEMS, 1]
    assert list(slices_of([SLICE_BYTES, 1, SLICE_BYTES, 1], lambda size: size)) == [
        [SLICE_BYTES],
        [1, SLICE_BYTES],
        [1],
    ]
    assert list(slices_of([], lambda _: 0)) == []


async def test_short_work_does_not_wait_for_a_turn() -> None:
    """A batch that fits into one slice is converted and encoded without a pause."""
    with pytest.raises(StopIteration) as converted:
        convert(list(range(SLICE_ITEMS)), str, lambda _: 1).send(None)
    assert converted.value.value == [str(n) for n in range(SLICE_ITEMS)]
    with pytest.raises(StopIteration) as encoded:
        list_reply("items", list(range(SLICE_ITEMS)), str).send(None)
    assert encoded.value.value.body.startswith(b'{"items":["0","1"')


async def test_long_replies_are_encoded_in_slices_to_the_same_json() -> None:
    """Other tasks run while a long list is encoded."""
    encoded: list[int] = []
    seen: list[int] = []

    def wire(number: int) -> int:
        encoded.append(number)
        return number

    task = asyncio.create_task(list_reply("items", list(range(1_000)), wire, rest={"cursor": "c"}))
    while not task.done():
        await asyncio.sleep(0)
        seen.append(len(encoded))
    assert (await task).body == b'{"items":[%b],"cursor":"c"}' % b",".join(b"%d" % n for n in range(1_000))
    assert {SLICE_ITEMS * n for n in range(1, 8)} <= set(seen)


async def test_only_one_of_several_long_tasks_runs_per_turn() -> None:
    """However many requests are heavy, a turn of the loop has one slice of one of them."""
    turns: list[int] = []
    turn = 0

    async def work() -> None:
        for _ in range(5):
            await next_slice()
            turns.append(turn)

    tasks = [asyncio.create_task(work()) for _ in range(4)]
    while not all(task.done() for task in tasks):
        turn += 1
        await asyncio.sleep(0)
    assert len(turns) == len(set(turns)) == 20


async def test_short_requests_get_many_turns_between_two_slices_while_callers_share_the_loop() -> None:
    """A short request needs several turns, and none of them waits for another slice."""
    slices = loop_slices(asyncio.get_running_loop())
    turn, turns = 0, list[int]()

    async def work() -> None:
        for _ in range(3):
            await next_slice()
            turns.append(turn)
            started = time.thread_time()
            while time.thread_time() - started < 0.002:
                pass

    async def run_all() -> int:
        nonlocal turn
        turns.clear()
        tasks = [asyncio.create_task(work()) for _ in range(2)]
        while not all(task.done() for task in tasks):
            turn += 1
            await asyncio.sleep(0)
        return min(after - before for before, after in pairwise(turns))

    assert await run_all() == 1  # no other caller
    slices.shared_until = math.inf
    assert await run_all() >= 10


async def test_functions_and_tasks_get_their_slices_in_order() -> None:
    """Reading a large body is long work too."""
    done: list[int] = []
    slices = loop_slices(asyncio.get_running_loop())
    for number in range(3):
        slices.enter(lambda number=number: done.append(number))  # type: ignore[misc]  # a default keeps the number
    await next_slice()
    assert done == [0, 1, 2]


class _Parts(list[bytes]):
    """Parts that record the last thread that read them."""

    thread = 0

    def __iter__(self) -> Iterator[bytes]:
        self.thread = threading.get_ident()
        return super().__iter__()


@pytest.mark.parametrize("size", [0, 1, JOINED_AT_ONCE_BYTES // 2, JOINED_AT_ONCE_BYTES])
async def test_the_loop_joins_at_most_a_megabyte(size: int) -> None:
    """Larger replies are joined on a thread."""
    parts = _Parts([b"a" * size, b"b" * size])
    assert await joined(parts) == b"a" * size + b"b" * size
    assert (parts.thread == threading.get_ident()) == (2 * size <= JOINED_AT_ONCE_BYTES)


class _Threads(ThreadPoolExecutor):
    """Threads that count their tasks."""

    tasks = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.tasks += 1
        return super().submit(fn, *args, **kwargs)


async def test_a_large_reply_is_joined_on_a_thread() -> None:
    """Once, with everything around the items."""
    threads = _Threads(1)
    asyncio.get_running_loop().set_default_executor(threads)
    items = ["x" * SLICE_BYTES] * 5
    reply = await list_reply("items", items, str, len, {"cursor": "c"})
    assert reply.body == b'{"items":[%b],"cursor":"c"}' % b",".join([b'"%b"' % one.encode() for one in items])
    assert threads.tasks == 1
