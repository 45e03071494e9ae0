"""Authentication with keys, tokens and certificates, and its cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tenantq.domain.access import Grant, Principal
from tenantq.errors import Forbidden, Unauthenticated
from tenantq.gates.authenticate import ANONYMOUS, CACHE_MAX, Authenticator
from tenantq.gates.certificate import CertificateGrant, CertificateMap, CertificateSettings
from tests.unit.gates.credentials import (
    MemoryBook,
    claims,
    key_set,
    private_key,
    public_jwk,
    replace_file,
    signed,
    verifier,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock

REFUSED = Unauthenticated().message
PRODUCER = Grant(role="producer")
CERTIFICATES = CertificateMap(
    CertificateSettings(
        names={
            "DNS:worker.acme.example": CertificateGrant(tenant="acme", role="consumer"),
            "DNS:worker.globex.example": CertificateGrant(tenant="globex", role="consumer"),
        }
    )
)


def certificate(*names: str) -> dict[str, Any]:
    """Return a certificate in the format of the ssl module."""
    return {"notAfter": "Jun  1 12:00:00 2030 GMT", "subjectAltName": tuple(("DNS", name) for name in names)}


ACME, GLOBEX = certificate("worker.acme.example"), certificate("worker.globex.example")
STRANGER, BOTH = certificate("who.example"), certificate("worker.acme.example", "worker.globex.example")


@pytest.fixture
def book() -> MemoryBook:
    """Keys and revocations, none at first."""
    return MemoryBook()


@pytest.fixture
def gate(book: MemoryBook, clock: ManualClock, tmp_path: Path) -> Authenticator:
    """Return an authenticator that accepts every kind of credential."""
    return Authenticator(book, clock, verifier(clock, tmp_path), CERTIFICATES)


async def refused(gate: Authenticator, bearer: str | None, certificate: dict[str, Any] | None = None) -> None:
    """Assert that credentials are refused with the one error text, cached or not."""
    assert gate.cached(bearer, certificate) is None
    with pytest.raises(Unauthenticated) as caught:
        await gate.authenticate(bearer, certificate)
    assert caught.value.message == REFUSED


async def forbidden(gate: Authenticator, bearer: str | None, certificate: dict[str, Any] | None = None) -> None:
    """Assert that credentials are forbidden, cached or not."""
    assert gate.cached(bearer, certificate) is None
    with pytest.raises(Forbidden):
        await gate.authenticate(bearer, certificate)
    assert gate.cached(bearer, certificate) is None


# ---- one credential ----


async def test_each_credential_is_verified_once_and_then_cached(
    gate: Authenticator, book: MemoryBook, clock: ManualClock
) -> None:
    """The same principal object is returned, which is the key of cached decisions."""
    key = book.put_key("acme", PRODUCER)
    for bearer, expected in [(key.token, f"key:{key.id}"), (signed(claims(clock)), "jwt:worker-7")]:
        assert gate.cached(bearer, None) is None
        first = await gate.authenticate(bearer, None)
        assert first.id == expected
        assert first.tenant == "acme"
        assert gate.cached(bearer, None) is first
        assert await gate.authenticate(bearer, None) is first
    holder = await gate.authenticate(None, ACME)
    assert holder.id == "cert:DNS:worker.acme.example"
    assert gate.cached(None, ACME) is holder


@pytest.mark.parametrize("token", ["an-admin-token-of-words", "looks.like.a-jwt", "x" * 512, "sécret-sécret-sécret"])
async def test_any_text_can_be_a_token(gate: Authenticator, book: MemoryBook, token: str) -> None:
    """It is found by its hash."""
    book.put_key(None, Grant(role="platform-admin"), token)
    principal = await gate.authenticate(token, None)
    assert principal.tenant is None
    assert principal.is_platform_admin


@pytest.mark.parametrize(
    "token", ["", "x", "tq_abc_def", "x" * 513, "x" * 1_000_000, "a.b.c", "\ud800" * 20, "\0" * 20, "🙂" * 20]
)
async def test_unknown_tokens_are_refused(
    gate: Authenticator, book: MemoryBook, clock: ManualClock, token: str
) -> None:
    """With one text, with and without token settings, also if anonymous callers are allowed."""
    await refused(gate, token)
    await refused(Authenticator(book, clock, anonymous_default=True), token)


async def test_tokens_need_a_verifier(book: MemoryBook, clock: ManualClock) -> None:
    """Without one, a valid token is an unknown key."""
    await refused(Authenticator(book, clock), signed(claims(clock)))


async def test_calls_without_a_credential_are_refused_unless_anonymous_is_allowed(
    gate: Authenticator, book: MemoryBook, clock: ManualClock
) -> None:
    """Anonymous callers may produce and consume in the default tenant."""
    await refused(gate, None, None)
    await refused(gate, None, {})
    legacy = Authenticator(book, clock, certificates=CERTIFICATES, anonymous_default=True)
    nothings: list[dict[str, Any] | None] = [None, {}]
    for nothing in nothings:
        assert await legacy.authenticate(None, nothing) is legacy.cached(None, nothing) is ANONYMOUS
    assert Principal("anonymous", "default", (Grant(role="producer"), Grant(role="consumer"))) == ANONYMOUS
    await refused(legacy, None, STRANGER)


async def test_the_last_use_of_keys_is_recorded(gate: Authenticator, book: MemoryBook, clock: ManualClock) -> None:
    """By key ID, cached or not; not for other credentials."""
    key, idle = book.put_key("acme", PRODUCER), book.put_key("acme", PRODUCER)
    await gate.authenticate(key.token, None)
    assert gate.last_used == {key.id: clock.wall_ms()}
    clock.advance(5)
    gate.cached(key.token, None)
    await gate.authenticate(signed(claims(clock)), None)
    assert gate.last_used == {key.id: clock.wall_ms()}
    assert idle.id not in gate.last_used


# ---- expiry and revocation ----


async def test_52_an_expired_key_is_refused_to_the_millisecond(
    gate: Authenticator, book: MemoryBook, clock: ManualClock
) -> None:
    """Cached or not."""
    key = book.put_key("acme", Grant(role="producer", expires_at=clock.wall_ms() + 1_000))
    await gate.authenticate(key.token, None)
    clock.advance(999)
    assert gate.cached(key.token, None) is not None
    clock.advance(1)
    await refused(gate, key.token)


async def test_52_a_revoked_key_is_refused_at_once(gate: Authenticator, book: MemoryBook, clock: ManualClock) -> None:
    """With the very next call."""
    key, other = book.put_key("acme", PRODUCER), book.put_key("acme", PRODUCER)
    for one in (key, other):
        await gate.authenticate(one.token, None)
    book.revoke_key(key, clock.wall_ms())
    await refused(gate, key.token)
    assert gate.cached(other.token, None) is not None
    del book.keys[other.token_hash]
    book.version += 1
    await refused(gate, other.token)


async def test_52_an_expired_token_is_refused_to_the_millisecond(gate: Authenticator, clock: ManualClock) -> None:
    """After its leeway, cached or not."""
    token = signed(claims(clock, exp=clock.wall_ms() // 1_000 + 10))
    principal = await gate.authenticate(token, None)
    assert principal.expires_at == clock.wall_ms() + 40_000
    clock.advance(39_999)
    assert gate.cached(token, None) is principal
    clock.advance(1)
    await refused(gate, token)


async def test_52_a_wall_clock_jump_ahead_expires_credentials(
    gate: Authenticator, book: MemoryBook, clock: ManualClock
) -> None:
    """Expiry is a wall-clock time."""
    key = book.put_key("acme", Grant(role="producer", expires_at=clock.wall_ms() + 60_000))
    token = signed(claims(clock))
    for bearer in (key.token, token):
        await gate.authenticate(bearer, None)
    clock.jump_wall(3_600_000)
    for bearer in (key.token, token):
        await refused(gate, bearer)


@pytest.mark.parametrize("name", ["token-1", "jwt:worker-7"])
async def test_52_a_revoked_token_is_refused_at_once(
    gate: Authenticator, book: MemoryBook, clock: ManualClock, name: str
) -> None:
    """By its ID or principal, in its tenant, until the revocation ends."""
    token = signed(claims(clock, jti="token-1"))
    other = signed(claims(clock, jti="token-2", sub="worker-8"))
    elsewhere = signed(claims(clock, jti="token-1", tenant="globex"))
    for one in (token, other, elsewhere):
        await gate.authenticate(one, None)
    book.revoke("acme", name, clock.wall_ms() + 5_000)
    await refused(gate, token)
    assert gate.cached(other, None) is not None
    assert gate.cached(elsewhere, None) is not None
    fresh = Authenticator(book, clock, gate._jwt)
    await refused(fresh, token)
    clock.advance(5_000)
    assert (await gate.authenticate(token, None)).id == "jwt:worker-7"


async def test_52_a_token_of_a_removed_key_is_refused_within_a_second(
    gate: Authenticator, clock: ManualClock, tmp_path: Path
) -> None:
    """While both keys are in the set, old tokens are accepted."""
    old_key, new_key = private_key("Ed25519"), private_key("Ed25519", 9)
    old, new = signed(claims(clock), old_key, kid="old"), signed(claims(clock), new_key, kid="new")
    old_entry, new_entry = public_jwk(old_key, kid="old"), public_jwk(new_key, kid="new")
    path = tmp_path / "keys.json"
    replace_file(path, key_set(old_entry))
    clock.advance(1_000)
    await gate.authenticate(old, None)
    replace_file(path, key_set(old_entry, new_entry))
    clock.advance(1_000)
    for token in (old, new):
        await gate.authenticate(token, None)
        assert gate.cached(token, None) is not None
    replace_file(path, key_set(new_entry))
    clock.advance(1_000)
    await refused(gate, old)
    assert (await gate.authenticate(new, None)).id == "jwt:worker-7"


async def test_a_certificate_expires_and_can_be_revoked(
    gate: Authenticator, book: MemoryBook, clock: ManualClock
) -> None:
    """Also on an established connection."""
    assert await gate.authenticate(None, ACME)
    book.revoke("acme", "cert:DNS:worker.acme.example", clock.wall_ms() + 1_000)
    await refused(gate, None, ACME)
    clock.advance(1_000)
    assert await gate.authenticate(None, ACME)
    clock.jump_wall(10 * 366 * 86_400_000)
    await refused(gate, None, ACME)


async def test_a_credential_change_needs_no_new_signature_check(
    gate: Authenticator, book: MemoryBook, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached entries are looked up again and stay."""
    key, token = book.put_key("acme", PRODUCER), signed(claims(clock))
    known = [await gate.authenticate(bearer, None) for bearer in (key.token, token)]
    book.put_key("globex", PRODUCER)
    assert [gate.cached(bearer, None) for bearer in (key.token, token)] == known
    monkeypatch.setattr(book, "token_revoked", pytest.fail)
    monkeypatch.setattr(book, "key", pytest.fail)
    assert [gate.cached(bearer, None) for bearer in (key.token, token)] == known


# ---- the cache ----


async def test_the_credential_cache_is_bounded_and_holds_no_token(
    book: MemoryBook, clock: ManualClock, tmp_path: Path
) -> None:
    """The least recently used entry is removed first."""
    gate = Authenticator(book, clock, verifier(clock, tmp_path, cache_max=3), CERTIFICATES)
    keys = [book.put_key("acme", PRODUCER) for _ in range(4)]
    for key in keys[:3]:
        await gate.authenticate(key.token, None)
    gate.cached(keys[0].token, None)
    await gate.authenticate(keys[3].token, None)
    assert [gate.cached(key.token, None) is not None for key in keys] == [True, False, True, True]
    assert all(type(one) is bytes and len(one) == 32 for one in gate._tokens)
    for number in range(5):
        await refused(gate, None, certificate(f"{number}.example"))
    assert len(gate._holders) == 3
    assert Authenticator(book, clock)._tokens.most == CACHE_MAX


async def test_refusals_are_not_cached(gate: Authenticator, book: MemoryBook, clock: ManualClock) -> None:
    """A flood of invalid tokens leaves no trace."""
    for number in range(20):
        await refused(gate, f"tq_unknown_{number}")
        await refused(gate, signed(claims(clock, exp=number)))
        with pytest.raises(Forbidden):
            await gate.authenticate(signed(claims(clock, tenant="ACME", sub=str(number))), None)
    assert not gate._tokens
    assert not gate.last_used


# ---- two credentials ----


async def test_a_token_takes_precedence_over_a_certificate_of_the_same_tenant(
    gate: Authenticator, book: MemoryBook, clock: ManualClock
) -> None:
    """Cached or not."""
    key = book.put_key("acme", PRODUCER)
    for bearer, expected in [(key.token, f"key:{key.id}"), (signed(claims(clock)), "jwt:worker-7")]:
        assert (await gate.authenticate(bearer, ACME)).id == expected
        found = gate.cached(bearer, ACME)
        assert found is not None
        assert found.id == expected


async def test_a_token_and_a_certificate_of_two_tenants_are_forbidden(
    gate: Authenticator, book: MemoryBook, clock: ManualClock
) -> None:
    """Also a platform token with a tenant's certificate, and also if each is cached alone."""
    key, admin = book.put_key("acme", PRODUCER), book.put_key(None, Grant(role="platform-admin"))
    bearers = [key.token, admin.token, signed(claims(clock))]
    for bearer in bearers:
        await forbidden(gate, bearer, GLOBEX)
        await forbidden(gate, bearer, BOTH)
        await gate.authenticate(bearer, None)
        await forbidden(gate, bearer, GLOBEX)
        await forbidden(gate, bearer, BOTH)
    await forbidden(gate, None, BOTH)


async def test_an_unmapped_certificate_is_ignored_with_a_token(
    gate: Authenticator, book: MemoryBook, clock: ManualClock
) -> None:
    """A listener may request certificates from callers that are identified by their tokens."""
    key, admin = book.put_key("acme", PRODUCER), book.put_key(None, Grant(role="platform-admin"))
    for bearer in (key.token, admin.token):
        found = await gate.authenticate(bearer, STRANGER)
        assert gate.cached(bearer, STRANGER) is found
    await refused(gate, None, STRANGER)
    unmapped = Authenticator(book, clock)
    assert (await unmapped.authenticate(key.token, GLOBEX)).tenant == "acme"
    await refused(unmapped, None, ACME)


async def test_one_valid_credential_does_not_replace_an_invalid_one(
    gate: Authenticator, book: MemoryBook, clock: ManualClock
) -> None:
    """Neither a certificate an invalid token, nor a token a revoked certificate."""
    await refused(gate, "tq_not_known", ACME)
    await refused(gate, "", ACME)
    key = book.put_key("acme", PRODUCER)
    await gate.authenticate(key.token, ACME)
    book.revoke("acme", "cert:DNS:worker.acme.example", clock.wall_ms() + 1_000)
    await refused(gate, key.token, ACME)
