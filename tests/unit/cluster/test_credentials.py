"""Credentials and journals of other shards: cached briefly, and refused while their state is unknown."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from tenantq.cluster.credentials import CredentialLookups, ShardCredentials
from tenantq.cluster.handshake import PeerName
from tenantq.cluster.link_calls import LinkCalls
from tenantq.cluster.member_queries import FoundKey
from tenantq.cluster.one_shard import OneShard
from tenantq.cluster.peers import Peers
from tenantq.cluster.platform_keys import PlatformKeyCopy, read_platform_keys
from tenantq.cluster.routed_service import shard_methods
from tenantq.cluster.scatter_gather import STEPS_MAX, audit_page
from tenantq.cluster.shard_calls import ShardCalls
from tenantq.cluster.shard_memory import ShardMemory
from tenantq.cluster.shard_spec import ShardSpec
from tenantq.domain.access import Grant, StoredKey
from tenantq.domain.placement import Topology, TopologyShard
from tenantq.engine.access_store import PLATFORM, AccessStore
from tenantq.errors import ShardDown, Unauthenticated
from tenantq.gates.authenticate import REMOTE_TRUST_MS, Authenticator
from tenantq.gates.certificate import CertificateGrant, CertificateMap, CertificateSettings
from tenantq.service.audit_trail import AuditPage, AuditQuery
from tenantq.store.shard_directories import HOME
from tests.unit.cluster.directories import directory_of
from tests.unit.gates.credentials import MemoryBook, claims, signed, verifier

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tenantq.engine.shard import Shard
    from tenantq.runtime.clock import ManualClock

SHARDS = (TopologyShard("0"), TopologyShard("1"), TopologyShard("2"))
NAMES = {"DNS:worker.example": CertificateGrant(tenant="acme", role="consumer")}
CERTIFICATE = {"notAfter": "Jun  1 12:00:00 2030 GMT", "subjectAltName": (("DNS", "worker.example"),)}
HOUR_MS = 3_600_000


def _peers(clock: ManualClock, number: int = 1) -> Peers:
    """Return the peers of a shard before any of them has answered."""
    spec = ShardSpec(number=number, shards=SHARDS, secret="s", peer_ports=(1, 2, 3), home_dir="")  # noqa: S106  # a test's own
    return Peers(spec, clock)


class RemoteBook:
    """The credentials of another shard, one call away."""

    def __init__(self, book: MemoryBook, clock: ManualClock) -> None:
        self.book = book
        self.clock = clock
        self.is_silent = False

    def is_here(self, tenant: str | None) -> bool:
        return tenant is None

    async def key(self, hash: bytes) -> StoredKey | None:
        if self.is_silent:
            raise ShardDown
        return self.book.key(hash)

    async def token_revoked(self, tenant: str, token_id: str | None, principal: str) -> bool:
        return self.book.token_revoked(tenant, token_id, principal, self.clock.wall_ms())


async def test_remote_credentials_are_cached_for_half_a_second_of_monotonic_time(
    clock: ManualClock, tmp_path: Path
) -> None:
    """A key, token or certificate revoked on the other shard is refused after that, although the wall clock was set back."""
    theirs = MemoryBook()
    certificates = CertificateMap(CertificateSettings(names=NAMES))
    gate = Authenticator(MemoryBook(), clock, verifier(clock, tmp_path), certificates)
    gate.other_shards = RemoteBook(theirs, clock)
    key = theirs.put_key("acme", Grant(role="producer"))
    token = signed(claims(clock, tenant="acme", jti="one"))
    given: list[tuple[str | None, dict[str, Any] | None]] = [(key.token, None), (token, None), (None, CERTIFICATE)]
    for bearer, certificate in given:
        principal = await gate.authenticate(bearer, certificate)
        assert gate.cached(bearer, certificate) == principal
        theirs.revoke("acme", principal.id, clock.wall_ms() + 10 * HOUR_MS)
    theirs.revoke_key(key, clock.wall_ms() - 2 * HOUR_MS)
    clock.jump_wall(-HOUR_MS)
    clock.advance(REMOTE_TRUST_MS - 1)
    assert all(gate.cached(*one) is not None for one in given)
    clock.advance(1)
    for one in given:
        assert gate.cached(*one) is None
        with pytest.raises(Unauthenticated):
            await gate.authenticate(*one)


async def test_a_cached_key_in_use_is_refreshed_before_it_expires(clock: ManualClock) -> None:
    """Its callers do not wait if its shard is briefly without an owner. Revocations still apply at once."""
    theirs = MemoryBook()
    gate = Authenticator(MemoryBook(), clock)
    others = gate.other_shards = RemoteBook(theirs, clock)
    key = theirs.put_key("acme", Grant(role="producer"))
    await gate.authenticate(key.token, None)
    clock.advance(REMOTE_TRUST_MS // 2)
    assert gate.cached(key.token, None) is not None
    await asyncio.sleep(0)  # the other shard answers
    others.is_silent = True
    for _ in range(2):
        clock.advance(REMOTE_TRUST_MS // 2 - 1)
        assert gate.cached(key.token, None) is not None
        await asyncio.sleep(0)
    clock.advance(2)
    assert gate.cached(key.token, None) is None
    others.is_silent = False
    await gate.authenticate(key.token, None)
    theirs.revoke_key(key, clock.wall_ms())
    clock.advance(REMOTE_TRUST_MS // 2)
    assert gate.cached(key.token, None) is not None
    await asyncio.sleep(0)
    assert gate.cached(key.token, None) is None


async def test_a_tenant_of_unknown_location_is_not_treated_as_local(clock: ManualClock, tmp_path: Path) -> None:
    """An unheard shard may have revoked its tokens. They are refused until all shards have answered, and then checked each time."""
    peers, book = _peers(clock), MemoryBook()
    gate = Authenticator(book, clock, verifier(clock, tmp_path))
    here = OneShard(1, cast("Shard", SimpleNamespace(state=SimpleNamespace(access=book))))
    calls = ShardCalls(here, clock, len(SHARDS), hold_ms=0)
    calls.remote = peers
    peers.calls = LinkCalls(shard_methods({}, {}), calls.release, lambda _: None)
    lookups = CredentialLookups(ShardMemory(here, clock), peers, calls, clock)
    homes, running = dict[str, int](), {1}
    directory = directory_of(1, Topology(SHARDS), homes, running.__contains__)
    gate.other_shards = ShardCredentials(1, directory, lookups, asyncio.get_running_loop())
    token = signed(claims(clock, tenant="acme", jti="one"))
    assert not gate.other_shards.is_here("acme")
    with pytest.raises(ShardDown):
        await gate.authenticate(token, None)
    running |= {0, 2}
    assert (await gate.authenticate(token, None)).tenant == "acme"
    clock.advance(REMOTE_TRUST_MS)
    homes["acme"] = 2
    await directory.refresh()
    with pytest.raises(ShardDown):  # the owner is known now, and its shard does not answer
        await gate.authenticate(token, None)


def platform_key() -> StoredKey:
    """Return a key of the platform."""
    book = MemoryBook()
    return book.keys[book.put_key(None, Grant(role="platform-admin")).token_hash]


class FirstShard:
    """A process with the first shard."""

    number, epoch = HOME, 1

    def __init__(self) -> None:
        self.access = AccessStore(cast("Any", SimpleNamespace(meta=SimpleNamespace(handle=None))))

    def threads(self) -> list[Any]:
        store = SimpleNamespace(ownership=SimpleNamespace(epoch=self.epoch))
        state = SimpleNamespace(store=store, access=self.access)
        return [SimpleNamespace(number=HOME, shard=SimpleNamespace(state=state))]

    def put(self, key: StoredKey) -> None:
        """Store a key of the platform."""
        self.access.put_key(cast("Any", SimpleNamespace(put=lambda *_: None)), PLATFORM, key)

    def revoke(self, key: StoredKey) -> None:
        """Revoke it."""
        self.access.revoke_key(cast("Any", SimpleNamespace(put=lambda *_: None)), PLATFORM, key.id, 1)


class Members:
    """Other processes with one shard each, one call away."""

    def __init__(self, books: dict[int, MemoryBook]) -> None:
        self.books = books
        self.silent = set[PeerName]()
        self.first = FirstShard()
        self.asked = 0
        self.hurry: Callable[[], None] = lambda: None

    def others(self) -> list[PeerName]:
        return list(self.books)

    members = others

    def owner(self, shard: int) -> PeerName | None:
        return shard if shard in self.books else None

    async def query(self, member: PeerName, path: str, *arguments: Any, timeout_ms: int = 0) -> Any:
        raise AssertionError

    async def ask(self, member: PeerName, path: str, *arguments: Any) -> Any:
        if path == "member.platform_keys":
            return read_platform_keys(self.first, *arguments)
        assert path == "member.key"
        self.asked += 1
        await asyncio.sleep(0)
        if member in self.silent:
            raise ShardDown
        return FoundKey(self.books[int(member)].key(arguments[0]), [int(member)])


async def test_concurrent_lookups_of_a_key_share_one_request(
    clock: ManualClock,
) -> None:
    """A key is unknown only if all shards say so. That is cached for a moment, but not while a shard is silent."""
    members, book = Members({0: MemoryBook(), 2: MemoryBook()}), MemoryBook()
    here = OneShard(1, cast("Shard", SimpleNamespace(state=SimpleNamespace(access=book))))
    lookups = CredentialLookups(
        ShardMemory(here, clock), members, ShardCalls(here, clock, len(SHARDS), hold_ms=0), clock
    )
    known = members.books[2].put_key("acme", Grant(role="producer"))
    hash = sha256(known.token.encode()).digest()
    found = await asyncio.gather(*(lookups.key(hash) for _ in range(5)))
    assert [one.id for one in found if one is not None] == [known.id] * 5
    assert members.asked == 2
    members.silent = {2}
    with pytest.raises(ShardDown):
        await lookups.key(hash)
    assert not lookups.is_unknown(hash)
    members.silent = set()
    assert await lookups.key(b"nobody's") is None
    assert lookups.is_unknown(b"nobody's")
    clock.advance(REMOTE_TRUST_MS)
    assert not lookups.is_unknown(b"nobody's")


async def test_the_copy_of_platform_keys_counts_only_while_the_first_shard_has_no_owner(clock: ManualClock) -> None:
    """A process that does not answer may own it, and have revoked a key. A key that the copy does not have is not judged."""
    members, here = (
        Members({0: MemoryBook(), 2: MemoryBook()}),
        OneShard(1, cast("Shard", SimpleNamespace(state=SimpleNamespace(access=MemoryBook())))),
    )
    copy = PlatformKeyCopy(cast("Any", SimpleNamespace(threads=list)), members, clock)
    lookups = CredentialLookups(
        ShardMemory(here, clock), members, ShardCalls(here, clock, len(SHARDS), hold_ms=0), clock, copy.find
    )
    key = platform_key()
    members.first.put(key)

    async def found() -> StoredKey | None:
        return await lookups.key(key.token_hash)

    assert await found() is None  # the first shard answers, although not with this key
    members.silent = {0}
    await copy.refresh()
    with pytest.raises(ShardDown):
        await found()
    del members.books[0]
    assert await found() == key
    members.silent = {2}
    with pytest.raises(ShardDown):
        await found()
    members.silent = set()
    with pytest.raises(ShardDown):
        await lookups.key(b"never seen")


async def test_the_copy_follows_the_owner_of_the_first_shard(clock: ManualClock) -> None:
    """It is read again after a change, and from the next owner. Without an owner, or an answer, it stays as it is."""
    members = Members({0: MemoryBook()})
    copy = PlatformKeyCopy(cast("Any", SimpleNamespace(threads=list)), members, clock)
    key = platform_key()
    await copy.refresh()
    assert copy.find(key.token_hash) is None
    members.first.put(key)
    await copy.refresh()
    assert copy.find(key.token_hash) == key
    members.first.revoke(key)
    await copy.refresh()
    known = copy.find(key.token_hash)
    assert known is not None
    assert known.revoked_at is not None
    unchanged = read_platform_keys(members.first, 1, members.first.access.version)
    assert unchanged is not None
    assert unchanged.keys is None
    members.first, members.first.epoch = FirstShard(), 2
    await copy.refresh()
    assert copy.find(key.token_hash) is None


async def test_a_long_audit_search_without_results_returns_a_cursor() -> None:
    """It does not first read the whole journal."""
    pages = 0

    async def read(_: int, query: AuditQuery) -> AuditPage:
        nonlocal pages
        pages += 1
        await asyncio.sleep(0)
        return AuditPage([], query.cursor or "1.0")

    async with asyncio.timeout(10):
        page = await audit_page(0, AuditQuery(), "", read)
    assert (page.rows, page.cursor, pages) == ([], "1.0", STEPS_MAX)
