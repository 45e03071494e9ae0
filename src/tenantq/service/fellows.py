"""What the shards of one server ask each other so that a question about all of them gets one answer.

Whoever asked has passed the gates of the shard that asks here; the link between shards lets nobody else in.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tenantq.backup.backups import BackupItem
from tenantq.backup.manifest import BackupManifest
from tenantq.cluster.directory import announced
from tenantq.cluster.link import shard_down
from tenantq.cluster.peers import QUICK_MS
from tenantq.domain.message import LOCAL
from tenantq.errors import Invalid, NotFound, TenantqError
from tenantq.journal.audit_query import Cursor
from tenantq.journal.erasure_certificate import ErasureCertificate
from tenantq.journal.record import JournalEntry
from tenantq.service.audit_trail import AuditPage, AuditQuery
from tenantq.service.call import TenantInfo
from tenantq.wire.topology import ShardItem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from tenantq.cluster.peers import Peers
    from tenantq.cluster.server import Asked
    from tenantq.journal.record import JournalRow
    from tenantq.service.service import Service

_ALL_READ: Final = "-"
_CURSOR: Final = "all:"
STEPS_MAX: Final = 20
"""Pages of one shard's journal that a query looks through for its next row; then it is answered with none, and where to go on."""
_encode: Final = msgspec.msgpack.Encoder().encode


class _TenantsWanted(msgspec.Struct, frozen=True, array_like=True):
    after: str | None
    limit: int
    figures: bool


class _BackupWanted(msgspec.Struct, frozen=True, array_like=True):
    name: str
    segments: bool


class _PutBack(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    queue: str
    receipts: list[str]


_decode_tenants: Final = msgspec.msgpack.Decoder(list[TenantInfo]).decode
_decode_query: Final = msgspec.msgpack.Decoder(AuditQuery).decode
_decode_page: Final = msgspec.msgpack.Decoder(AuditPage).decode
_decode_erasures: Final = msgspec.msgpack.Decoder(list[ErasureCertificate]).decode
_decode_manifest: Final = msgspec.msgpack.Decoder(BackupManifest).decode
_decode_backups: Final = msgspec.msgpack.Decoder(list[BackupItem]).decode
_decode_entries: Final = msgspec.msgpack.Decoder(list[JournalEntry]).decode
_decode_put_back: Final = msgspec.msgpack.Decoder(list[_PutBack]).decode


class Fellows:
    """The other shards, for the service of one of them."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._service: Service
        self._making: Counter[str] = Counter()

    def serve(self, service: Service) -> None:
        """Answer the other shards' questions from this shard's service."""
        self._service = service
        answers: dict[str, Callable[[Asked], Awaitable[bytes]]] = {
            "tenant_page": self._tell_tenants,
            "audit_page": self._tell_audit,
            "erasures": self._tell_erasures,
            "backup": self._tell_backup,
            "backups": self._tell_backups,
            "metrics": self._tell_metrics,
            "put_back": self._put_back_here,
            "entries": self._note_here,
        }
        for kind, handler in answers.items():
            self._peers.answers(kind, handler)
        self._peers.is_ready = lambda: service.shard.failure is None

    @property
    def number(self) -> int:
        """This shard's own number."""
        return self._peers.number

    def shards(self, _: ShardItem) -> list[ShardItem]:
        """Return all shards as clients are told of them."""
        return [
            ShardItem(name=one.name, region=one.region, address=one.address) for one in self._peers.spec.topology.shards
        ]

    def has_shard_in(self, regions: Iterable[str]) -> bool:
        """Tell whether another shard is in one of these regions."""
        return any(place != self.number for place in self._peers.directory.topology.eligible(regions))

    # ---- tenants ----

    @contextlib.contextmanager
    def making(self, tenant: str) -> Iterator[None]:
        """Let a tenant be made on this shard, on the word of the first one."""
        self._making[tenant] += 1
        try:
            yield
        finally:
            self._making[tenant] -= 1
            if not self._making[tenant]:
                del self._making[tenant]

    def may_create(self, tenant: str) -> bool:
        """Tell whether the first shard has said that a tenant be made here: nobody else knows that no other shard has it."""
        return tenant in self._making

    async def announce_deleted(self, tenant: str) -> None:
        """Return when all others that run know that a tenant is gone."""
        await self._peers.tell_gone(tenant)

    async def tenants(
        self, own: Sequence[TenantInfo], after: str | None, limit: int, *, figures: bool
    ) -> list[TenantInfo]:
        """Return a page of all shards' tenants; ``own`` is the same page of this one's."""
        found = self._announced(own)
        for answer in (
            await self._peers.ask_all("tenant_page", _encode(_TenantsWanted(after, limit, figures)))
        ).values():
            found += _decode_tenants(answer)
        return sorted(found, key=lambda tenant: tenant.name)[:limit]

    def _announced(self, tenants: Sequence[TenantInfo]) -> list[TenantInfo]:
        names = set(announced(self.number, (one.name for one in tenants)))
        return [one for one in tenants if one.name in names]

    async def _tell_tenants(self, asked: Asked) -> bytes:
        wanted = msgspec.msgpack.decode(asked.payload, type=_TenantsWanted)
        page = await self._service.tenants.list_local(wanted.after, wanted.limit, figures=wanted.figures)
        return _encode(self._announced(page))

    # ---- the audit trail ----

    async def audit(self, query: AuditQuery, query_local: Callable[[AuditQuery], Awaitable[AuditPage]]) -> AuditPage:
        """Return a page of all shards' journals by time."""
        newest_first = query.order == "newest"
        count = len(self._peers.links) + 1
        places = _parse(query.cursor, count, newest_first=newest_first)
        pages = await asyncio.gather(
            *(self._page_of(number, query, place, query_local) for number, place in enumerate(places)),
        )
        return _merge(pages, places, query.limit, newest_first=newest_first)

    async def _page_of(
        self,
        number: int,
        query: AuditQuery,
        place: str,
        query_local: Callable[[AuditQuery], Awaitable[AuditPage]],
    ) -> AuditPage:
        """Return the next rows of one shard: some; or none, because there are no more or none was found soon."""
        if place == _ALL_READ:
            return AuditPage([])
        cursor = place or None
        for _ in range(STEPS_MAX):
            wanted = msgspec.structs.replace(query, cursor=cursor)
            if number == self.number:
                page = await query_local(wanted)
            else:
                page = _decode_page(await self._peers.ask(number, "audit_page", _encode(wanted)))
            if page.rows or page.cursor is None:
                break
            cursor = page.cursor
        return page

    async def _tell_audit(self, asked: Asked) -> bytes:
        return _encode(await self._service.audit.query_local(_decode_query(asked.payload)))

    async def note(self, entries: list[JournalEntry]) -> None:
        """Journal what is not an operation of the engine's, each with the shard of its tenant; here, if that does not answer."""
        places: dict[int, list[JournalEntry]] = {}
        for one in entries:
            shard = self._peers.directory.find(one.tenant) if one.tenant else None
            places.setdefault(self.number if shard is None else shard, []).append(one)
        here = places.pop(self.number, [])
        for shard, theirs in places.items():
            try:
                await self._peers.ask(shard, "entries", _encode(theirs))
            except TenantqError:
                here += theirs
        if here:
            await self._service.shard.journal.note(here)

    async def _note_here(self, asked: Asked) -> bytes:
        await self._service.shard.journal.note(_decode_entries(asked.payload))
        return b""

    # ---- erasures and backups ----

    async def erasures(self, own: Sequence[ErasureCertificate]) -> list[ErasureCertificate]:
        """Return all shards' certificates by time."""
        found = list(own)
        for answer in (await self._peers.ask_all("erasures")).values():
            found += _decode_erasures(answer)
        return sorted(found, key=lambda one: one.erased_at)

    async def _tell_erasures(self, _: Asked) -> bytes:
        return _encode(self._service.shard.erasure.certificates())

    async def back_up(self, name: str, *, segments: bool) -> list[BackupManifest]:
        """Have all other shards make a backup of this name too; raise what one of them raised, once all are done."""
        wanted = _encode(_BackupWanted(name, segments))
        answers = (await self._peers.ask_those_up("backup", wanted, wait_ms=None)).values()
        for answer in answers:
            if isinstance(answer, TenantqError):
                raise answer
        return [_decode_manifest(answer) for answer in answers if isinstance(answer, bytes)]

    async def _tell_backup(self, asked: Asked) -> bytes:
        wanted = msgspec.msgpack.decode(asked.payload, type=_BackupWanted)
        return _encode(await self._service.backups.create_local(wanted.name, segments=wanted.segments))

    async def backups(self, own: Sequence[BackupItem]) -> list[BackupItem]:
        """Return the backups of which every shard has its part; others are named with what is missing."""
        parts: dict[str, list[BackupItem | None]] = {one.name: [one] for one in own}
        for number, answer in sorted((await self._peers.ask_all("backups")).items()):
            there = {one.name: one for one in _decode_backups(answer)}
            for name in (*parts, *(name for name in there if name not in parts)):
                parts.setdefault(name, [None] * number).append(there.get(name))
        return [_whole(name, parts[name]) for name in sorted(parts)]

    async def _tell_backups(self, _: Asked) -> bytes:
        return _encode(await self._service.backups.list_local())

    # ---- operations ----

    async def metrics(self, own: bytes) -> bytes:
        """Return the figures of all shards that run, each with its label, and which of them run."""
        answers = await self._peers.ask_those_up("metrics", wait_ms=QUICK_MS)
        texts = {self.number: own, **{number: one for number, one in answers.items() if isinstance(one, bytes)}}
        names = [shard.name for shard in self._peers.spec.topology.shards]
        return _merged_figures({names[number]: text for number, text in sorted(texts.items())}, names)

    async def _tell_metrics(self, _: Asked) -> bytes:
        return self._service.status.metrics_local()

    def readiness(self) -> dict[str, Any]:
        """Return how every shard does, by name: this one at length, the others as they said within the last seconds. Nobody is asked."""
        found: dict[int, Any] = {self.number: self._service.status.readiness()}
        for number, link in self._peers.links.items():
            is_up = link.is_up and self._peers.directory.is_known(number)
            ready = is_up and link.is_ready
            status = "ready" if ready else "failed" if is_up else "down"
            found[number] = {"status": status, "ready": ready, "reason": "" if is_up else shard_down(number).message}
        shards = self._peers.spec.topology.shards
        return {shards[number].name: found[number] for number in sorted(found)}

    # ---- fleets ----

    async def put_back(self, shard: int, leased: dict[tuple[str, str], list[str]]) -> None:
        """Release, on any shard, what was leased for nobody."""
        parts = [_PutBack(tenant, queue, receipts) for (tenant, queue), receipts in leased.items()]
        if shard == self.number:
            await self._release(parts)
        else:
            await self._peers.ask(shard, "put_back", _encode(parts))

    async def _put_back_here(self, asked: Asked) -> bytes:
        await self._release(_decode_put_back(asked.payload))
        return b""

    async def _release(self, parts: list[_PutBack]) -> None:
        for part in parts:
            with contextlib.suppress(NotFound):  # the queue went meanwhile, and they with it
                await self._service.shard.release(part.tenant, part.queue, part.receipts, LOCAL)


def _parse(cursor: str | None, count: int, *, newest_first: bool) -> list[str]:
    """Return where each shard's next page begins: a cursor of its own, nothing for the start, or that all of it was read."""
    if cursor is None:
        return [""] * count
    try:
        places = msgspec.json.decode(base64.urlsafe_b64decode(cursor.removeprefix(_CURSOR)), type=list[str])
    except (ValueError, msgspec.MsgspecError):
        places = []
    if not cursor.startswith(_CURSOR) or len(places) != count:
        raise Invalid("cursor: is not one that was given out")
    for place in places:
        if place not in {"", _ALL_READ} and Cursor.parse(place).newest_first != newest_first:
            raise Invalid("cursor: is of a query in the other order")
    return places


def _merge(pages: list[AuditPage], places: list[str], limit: int, *, newest_first: bool) -> AuditPage:
    """Return the first rows of all pages by time, up to where a page ends that is not its shard's last."""
    taken: list[JournalRow] = []
    at = [0] * len(pages)
    while len(taken) < limit:
        ahead = [number for number, page in enumerate(pages) if at[number] < len(page.rows)]
        if not ahead or any(
            page.cursor is not None and at[number] == len(page.rows) for number, page in enumerate(pages)
        ):
            break
        pick = max if newest_first else min
        number = pick(ahead, key=lambda one: pages[one].rows[at[one]].ts)
        taken.append(pages[number].rows[at[number]])
        at[number] += 1
    following: list[str] = []
    for number, page in enumerate(pages):
        if at[number] == len(page.rows):
            following.append(page.cursor or _ALL_READ)
        elif at[number]:
            last = page.rows[at[number] - 1]
            following.append(str(Cursor(last.seq, last.n, newest_first)))
        else:
            following.append(places[number])
    more = any(place != _ALL_READ for place in following)
    cursor = _CURSOR + base64.urlsafe_b64encode(msgspec.json.encode(following)).decode() if more else None
    return AuditPage(taken, cursor, any(page.incomplete for page in pages))


def _whole(name: str, parts: list[BackupItem | None]) -> BackupItem:
    """Return one backup of all shards; each has its own journal, so that records are told of none."""
    missing = [str(number) for number, part in enumerate(parts) if part is None]
    wrong = [part.error for part in parts if part is not None and part.error]
    there = [part for part in parts if part is not None and not part.error]
    if missing or wrong or not there:
        text = f"shard {', '.join(missing)} has no part of it" if missing else wrong[0]
        return BackupItem(name, error=text)
    return BackupItem(
        name,
        max(part.created_at or 0 for part in there),
        there[0].last_seq,
        sum(part.size or 0 for part in there),
        there[0].segments_upto,
        there[0].version,
    )


def _merged_figures(texts: dict[str, bytes], shards: list[str]) -> bytes:
    """Return Prometheus' texts as one: a family stands once, each sample with the label of its shard."""
    families: dict[str, list[str]] = {}
    for shard, text in texts.items():
        family: list[str] = []
        for line in text.decode().splitlines():
            if line.startswith("# HELP "):
                family = families.setdefault(line.split(" ", 3)[2], [])
                if not family:
                    family.append(line)
            elif line.startswith("# TYPE "):
                if len(family) == 1:
                    family.append(line)
            elif line:
                family.append(_labelled(line, shard))
    up = ["# HELP tenantq_shard_up Whether a shard runs.", "# TYPE tenantq_shard_up gauge"]
    up += [f'tenantq_shard_up{{shard="{shard}"}} {int(shard in texts)}' for shard in shards]
    return "".join(f"{line}\n" for family in (*families.values(), up) for line in family).encode()


def _labelled(line: str, shard: str) -> str:
    label = f'shard="{shard}"'
    name, brace, rest = line.partition("{")
    if brace:
        return f"{name}{{{label}{'' if rest.startswith('}') else ','}{rest}"
    name, _, value = line.partition(" ")
    return f"{name}{{{label}}} {value}"
