"""Decides when gathered calls are sent, for the batchers of adds, settlements and polls.

The first call is sent at the end of the event loop's current turn, so that all callers of that turn share a request. While requests
are in flight, new calls gather and leave with the next request. No call ever waits for others to join it.

Replies that arrive together are delivered one after the other. The first callers can send their next calls while this process still
handles the rest, so the server stays busy.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from tenantq.client.session import ClientSession, closed
from tenantq.errors import TenantqError

Departure = tuple[list[asyncio.Future[Any]], Coroutine[Any, Any, None]]
"""The callers that wait for a request, and the coroutine that sends it."""

REQUESTS_MAX: Final = 2
"""Requests in flight per batcher. With two, the server already has the next one when it has answered the first."""


class Dispatcher:
    """Keeps up to ``requests_max`` requests of one batcher in flight.

    ``start`` takes gathered calls and returns them with the coroutine that sends them; None: nothing is gathered.
    ``refuse_all`` refuses what is gathered when the client is closed. ``maybe_done`` says whether a request that
    closing the client interrupts may have changed something.
    """

    def __init__(
        self,
        session: ClientSession,
        start: Callable[[], Departure | None],
        refuse_all: Callable[[TenantqError], None],
        *,
        requests_max: int = REQUESTS_MAX,
        maybe_done: bool,
    ) -> None:
        self._session = session
        self._start = start
        self._refuse_all = refuse_all
        self._requests_max = requests_max
        self._maybe_done = maybe_done
        self._scheduled = False
        self._waking = False  # callers that were just answered have not sent their next calls yet
        self.in_flight = 0

    @property
    def free(self) -> int:
        """How many more requests may be in flight."""
        return self._requests_max - self.in_flight

    def schedule(self) -> None:
        """Send what is gathered at the end of this turn of the event loop, if a request is free."""
        if not self._scheduled and self.in_flight < self._requests_max:
            self._scheduled = True
            self._session.loop.call_soon(self._send)

    def schedule_after_answers(self) -> None:
        """Send what is gathered one turn later, so that callers that were just answered can join."""
        if not self._scheduled:
            self._scheduled = True
            self._session.loop.call_soon(lambda: self._session.loop.call_soon(self._send))

    async def before_answering(self) -> None:
        """Return when the callers of the previous reply have had their turn."""
        while self._waking:  # noqa: ASYNC110  # lasts a turn of the loop or two
            await asyncio.sleep(0)
        self._waking = True

    def _send(self) -> None:
        self._scheduled = self._waking = False
        if self._session.closed:
            self._refuse_all(closed())
        while self.free > 0 and (departure := self._start()) is not None:
            self.in_flight += 1
            self._session.spawn(self._run(*departure))

    async def _run(self, callers: list[asyncio.Future[Any]], request: Coroutine[Any, Any, None]) -> None:
        try:
            await request
        except asyncio.CancelledError:
            refuse(callers, closed(maybe_done=self._maybe_done))
            raise
        except TenantqError as error:
            refuse(callers, error)
        except Exception as error:  # noqa: BLE001  # a bug must reach the callers, which would wait forever
            bug = TenantqError(f"internal error in the client: {error!r}")
            bug.__cause__ = error
            refuse(callers, bug)
        finally:
            self.in_flight -= 1
            if self._session.closed:
                self._send()
            else:
                self.schedule_after_answers()


def refuse(futures: Iterable[asyncio.Future[Any]], error: TenantqError) -> None:
    """Raise a copy of the error to each waiting caller."""
    for future in futures:
        if not future.done():
            future.set_exception(error.copy())
