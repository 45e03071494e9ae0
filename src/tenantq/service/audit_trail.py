"""The audit trail: answers queries of the journal on threads."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from tenantq.domain.access import AuditResult
from tenantq.domain.limits import PageSize, PrincipalName, WallTime
from tenantq.domain.validation import matching, validated
from tenantq.engine.shard import Shard
from tenantq.errors import Closed, Invalid
from tenantq.journal.audit_query import AuditReader, Cursor
from tenantq.journal.record import JournalRow
from tenantq.journal.row_filter import JournalFilter
from tenantq.journal.segment_index import SegmentIndex
from tenantq.runtime.randomness import id_bytes, id_text
from tenantq.wire.messages import MessageId

_T = TypeVar("_T")
_READERS: Final = 2  # threads; each caller's tenant has one at most
_ACTION: Final = "[a-z_*]{1,80}"
_Actions = Annotated[
    str,
    matching(
        f"{_ACTION}(,{_ACTION}){{0,63}}",
        "1 to 64 actions, separated by commas, each of 1 to 80 characters of a-z and '_', or '*' for merged rows",
    ),
]


class AuditConditions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects rows of the journal. All given conditions must hold."""

    action: _Actions | None = None
    result: AuditResult | None = None
    principal: PrincipalName | None = None
    start: WallTime | None = None  # wall clock, inclusive
    end: WallTime | None = None  # wall clock, exclusive
    queue: PrincipalName | None = None
    message: MessageId | None = None
    order: Literal["oldest", "newest"] = "oldest"  # which comes first
    cursor: str | None = None


class AuditQuery(AuditConditions, frozen=True, kw_only=True):
    """An audit query of a tenant, or of the platform, which may select the rows of one tenant."""

    tenant: PrincipalName | None = None
    limit: PageSize = 100


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
        self, query: AuditQuery, tenant: str | None, first_seq: int = 1, queues: tuple[str, ...] | None = None
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


def check_query(query: AuditQuery) -> None:
    """Raise Invalid unless the query is valid. Its cursor belongs to one shard."""
    validated(query)
    if query.message is not None:
        id_bytes(query.message)
    if query.cursor is not None:
        Cursor.parse(query.cursor)


def _filter(query: AuditQuery, tenant: str | None, queues: tuple[str, ...] | None) -> JournalFilter:
    return JournalFilter(
        tenant=tenant if tenant is not None else query.tenant,
        ops=frozenset(query.action.split(",")) if query.action is not None else None,
        result=query.result,
        principal=query.principal,
        start=query.start,
        end=query.end,
        queue=query.queue,
        queues=queues,
        message=id_text(id_bytes(query.message)) if query.message is not None else None,
    )
