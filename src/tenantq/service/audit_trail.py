"""The audit trail: answers queries of the journal on threads."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from tenantq.domain import limits
from tenantq.domain.validation import check_field
from tenantq.engine.shard import Shard
from tenantq.errors import Closed, Invalid
from tenantq.journal.audit_query import AuditReader, Cursor
from tenantq.journal.record import JournalRow
from tenantq.journal.row_filter import RESULTS, JournalFilter
from tenantq.journal.segment_index import SegmentIndex
from tenantq.runtime.randomness import id_bytes, id_text

ACTIONS_MAX: Final = 64
_T = TypeVar("_T")
_READERS: Final = 2  # threads; each caller's tenant has one at most
_ACTION: Final = re.compile("[a-z_*]{1,80}")
ORDERS: Final = ("oldest", "newest")


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of an audit query; None means any."""

    action: str | Sequence[str] | None = None  # one, or several separated by commas
    result: str | None = None  # SUCCESS, DENIED or ERROR
    principal: str | None = None
    start: int | None = None  # wall clock, inclusive
    end: int | None = None  # wall clock, exclusive
    queue: str | None = None
    message: str | None = None
    tenant: str | None = None  # of the platform's audit only
    order: str = "oldest"  # or newest, first
    limit: int = 100
    cursor: str | None = None


class AuditPage(msgspec.Struct, frozen=True):
    """A page of rows. It unpacks to the rows and the cursor of the next page, None on the last page."""

    rows: list[JournalRow]
    cursor: str | None = None
    incomplete: bool = False  # older rows are in segments that this server cannot reach

    def __iter__(self) -> Iterator[Any]:
        yield self.rows
        yield self.cursor


class AuditTrail:
    """Answers audit queries, a few at a time and one per tenant, so that no tenant delays the others."""

    def __init__(self, shard: Shard, segments: SegmentIndex | None = None) -> None:
        self._shard = shard
        self._reader = AuditReader(shard.journal, segments)
        self._threads = ThreadPoolExecutor(_READERS, thread_name_prefix="tenantq-audit")
        self._turns: dict[str, _Turn] = {}
        self._closed = False

    async def close(self) -> None:
        """Wait for queries in progress and start no more."""
        self._closed = True
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    async def page(
        self, query: AuditQuery, *, tenant: str | None, first_seq: int = 1, queues: tuple[str, ...] | None = None
    ) -> AuditPage:
        """Return a page of rows.

        ``tenant`` None: of all tenants. Rows of records before ``first_seq``, or of queues that match none of the patterns
        ``queues``, are not shown.
        """
        wanted = _filter(query, tenant, queues)
        newest_first = query.order == "newest"
        cursor = Cursor.parse(query.cursor) if query.cursor is not None else None
        if cursor is not None and cursor.newest_first != newest_first:
            raise Invalid("cursor: belongs to a query in the other order")
        await self._shard.loop.synced()
        read = partial(
            self._reader.page,
            wanted,
            limit=query.limit,
            place=(cursor.seq, cursor.n) if cursor is not None else None,
            newest_first=newest_first,
            first_seq=max(1, first_seq),
        )
        page = await self.in_turn(tenant or "", read)
        more = str(Cursor(*page.more, newest_first)) if page.more is not None else None
        return AuditPage(page.rows, more, page.incomplete)

    def time_of(self, id: bytes) -> int:
        """Return the wall-clock time in the ID of a message that was added to this shard."""
        state = self._shard.state
        return int.from_bytes(id[:6]) + state.wall_ms() - state.shard_clock.now_ms()

    async def in_turn(self, who: str, read: Callable[[], _T]) -> _T:
        """Return what a long read of a tenant returns. It runs on one of a few threads, after the tenant's earlier reads.

        Each thread that runs Python code delays the event loop, so all long reads share these threads.
        """
        turn = self._turns.setdefault(who, _Turn())
        turn.callers += 1
        try:
            async with turn.lock:
                if self._closed:
                    raise Closed
                return await asyncio.get_running_loop().run_in_executor(self._threads, read)
        finally:
            turn.callers -= 1
            if not turn.callers:
                del self._turns[who]


class _Turn:
    """The turn of one tenant's queries."""

    def __init__(self) -> None:
        self.callers = 0
        self.lock = asyncio.Lock()


def check_query(query: AuditQuery) -> AuditQuery:
    """Return a valid query. Raises Invalid."""
    check_field("limit", query.limit, limits.PageSize)
    if query.result is not None and (type(query.result) is not str or query.result not in RESULTS):
        raise Invalid(f"result: must be one of {', '.join(RESULTS)}")
    if type(query.order) is not str or query.order not in ORDERS:
        raise Invalid(f"order: must be one of {', '.join(ORDERS)}")
    for field in ("principal", "queue", "message", "tenant"):
        if (text := getattr(query, field)) is not None:
            check_field(field, text, limits.PrincipalName)
    for field in ("start", "end"):
        if (time := getattr(query, field)) is not None:
            check_field(field, time, limits.WallTime)
    _actions(query)
    if query.message is not None:
        id_bytes(query.message)
    if query.cursor is not None:
        Cursor.parse(query.cursor)
    return query


def _actions(query: AuditQuery) -> frozenset[str] | None:
    given = query.action
    if given is None:
        return None
    if type(given) is str:
        given = given.split(",")
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= ACTIONS_MAX:
        raise Invalid(f"action: must be 1 to {ACTIONS_MAX} actions, separated by commas")
    for action in given:
        if type(action) is not str or _ACTION.fullmatch(action) is None:
            raise Invalid("action: must be 1 to 80 characters of a-z and '_', or '*' for merged rows")
    return frozenset(given)


def _filter(query: AuditQuery, tenant: str | None, queues: tuple[str, ...] | None) -> JournalFilter:
    return JournalFilter(
        tenant=tenant if tenant is not None else query.tenant,
        ops=_actions(query),
        result=query.result,
        principal=query.principal,
        start=query.start,
        end=query.end,
        queue=query.queue,
        queues=queues,
        message=id_text(id_bytes(query.message)) if query.message is not None else None,
    )
