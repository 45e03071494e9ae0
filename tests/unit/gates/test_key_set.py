"""Key sets for tokens: what is read from them, and how changes of files and URLs are noticed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
from concurrent.futures import wait
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from tenantq.domain.urls import check_secure_url
from tenantq.errors import Invalid, Unauthenticated, Unavailable
from tenantq.gates.json_web_token import JwtSettings, JwtVerifier
from tenantq.gates.key_set import DOCUMENT_BYTES_MAX, KeyFile, KeyUrl
from tenantq.gates.verification_key import RSA_ALGORITHMS, parse_key_set
from tests.unit.gates.credentials import SECRET, claims, key_set, private_key, public_jwk, replace_file, signed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock

OLD, NEW = private_key("Ed25519", 1), private_key("Ed25519", 2)
OLD_ENTRY, NEW_ENTRY = public_jwk(OLD, kid="old"), public_jwk(NEW, kid="new")


# ---- documents ----


def test_keys_are_bound_to_the_algorithms_of_their_kind() -> None:
    """And to the algorithm that the entry names, if any."""
    kinds = ["RSA", "P-256", "P-384", "Ed25519"]
    entries = [public_jwk(private_key(kind), kid=kind) for kind in kinds]
    found = {key.id: key.algorithms for key in parse_key_set(key_set(*entries).encode())}
    assert found == {"RSA": RSA_ALGORITHMS, "P-256": {"ES256"}, "P-384": {"ES384"}, "Ed25519": {"EdDSA"}}
    (only,) = parse_key_set(key_set({**entries[0], "alg": "PS256", "use": "sig"}).encode())
    assert only.algorithms == {"PS256"}


def _weak_rsa() -> dict[str, Any]:
    return dict(RSAAlgorithm.to_jwk(rsa.generate_private_key(65_537, 1_024).public_key(), as_dict=True))  # noqa: S505  # weak on purpose


def _private() -> dict[str, Any]:
    return dict(ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()), as_dict=True))


def _other_curve() -> dict[str, Any]:
    return dict(ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256K1()).public_key(), as_dict=True))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA", "alg": "HS256"}, "a shared secret"),
        (_private(), "a private key"),
        (5, "not an object"),
        ([], "not an object"),
        ({}, "kty is not"),
        ({"kty": "XYZ"}, "kty is not"),
        ({"kty": ["RSA"]}, "kty is not"),
        ({"kty": "RSA"}, "not a valid key"),
        ({"kty": "RSA", "n": 5, "e": "AQAB"}, "not a valid key"),
        ({"kty": "RSA", "n": "!", "e": "AQAB"}, "not a valid key"),
        ({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}, "not a valid key"),
        ({**public_jwk(private_key("P-256")), "y": public_jwk(private_key("P-256", 1))["y"]}, "not a valid key"),
        ({"kty": "OKP", "crv": "X25519", "x": "AA"}, "not a valid key"),
        ({**OLD_ENTRY, "use": "enc"}, "not for verifying"),
        ({**OLD_ENTRY, "key_ops": ["sign"]}, "not for verifying"),
        ({**OLD_ENTRY, "key_ops": "verify"}, "not for verifying"),
        ({**OLD_ENTRY, "kid": 5}, "kid is not text"),
        ({**OLD_ENTRY, "alg": "RS256"}, "alg does not fit"),
        ({**OLD_ENTRY, "alg": ["EdDSA"]}, "alg does not fit"),
        ({**public_jwk(private_key("RSA")), "alg": "HS256"}, "alg does not fit"),
        (_weak_rsa(), "1024 bits"),
        (_other_curve(), "curve is not"),
    ],
)
def test_an_unusable_entry_is_left_out_with_a_warning(
    entry: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The other entries are used, and nothing of a key is logged."""
    with caplog.at_level(logging.WARNING, "tenantq"):
        (key,) = parse_key_set(key_set(entry, NEW_ENTRY).encode())
    assert key.id == "new"
    (record,) = caplog.records
    assert reason in record.getMessage()
    assert "c2VjcmV0" not in record.getMessage()


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=10) | st.sampled_from(["RSA", "EC", "OKP", "sig", "verify", "AQAB"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kty", "n", "e", "x", "y", "crv", "kid", "alg", "use"]), inner, max_size=5)
    ),
    max_leaves=10,
)


@given(entries=st.lists(JSON, max_size=4))
def test_a_valid_key_is_found_among_any_entries(entries: list[Any]) -> None:
    """Invalid entries raise no error."""
    assert [key.id for key in parse_key_set(key_set(*entries, NEW_ENTRY).encode())] == ["new"]


@given(document=st.binary(max_size=100) | JSON.map(lambda value: json.dumps({"keys": value}).encode()))
def test_any_document_is_a_key_set_or_invalid(document: bytes) -> None:
    """No other error is raised."""
    with contextlib.suppress(Invalid):
        assert isinstance(parse_key_set(document), tuple)


# ---- files ----


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """Write a key set with the old key."""
    path = tmp_path / "keys.json"
    path.write_text(key_set(OLD_ENTRY))
    return path


def open_file(path: Path, clock: ManualClock, **settings: Any) -> JwtVerifier:
    """Return a verifier that reads a file."""
    return JwtVerifier(JwtSettings(jwks_file=str(path), **settings), clock)


def damage_file(path: Path, text: str | None) -> None:
    """Write garbage into a file, or delete it."""
    if text is None:
        path.unlink()
    else:
        path.write_text(text)


def overwrite(path: Path, text: str) -> None:
    """Write a file in place, within one tick of its timestamp."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_mtime_ns, after.st_size, after.st_ino) == (before.st_mtime_ns, before.st_size, before.st_ino)


def token(clock: ManualClock, key: Any, kid: str | None) -> str:
    """Return a valid token signed with a key."""
    return signed(claims(clock), key, **({} if kid is None else {"kid": kid}))


@pytest.mark.parametrize("with_kid", [True, False])
async def test_52_old_and_new_keys_overlap_during_rotation(
    clock: ManualClock, key_file: Path, *, with_kid: bool
) -> None:
    """Old tokens are valid while both keys are in the set, and not a second longer."""
    gate = open_file(key_file, clock)
    old, new = token(clock, OLD, "old" if with_kid else None), token(clock, NEW, "new" if with_kid else None)
    generations = [gate.current_generation()]
    await gate.verify(old)
    with pytest.raises(Unauthenticated):
        await gate.verify(new)
    for entries, accepted in [([OLD_ENTRY, NEW_ENTRY], [old, new]), ([NEW_ENTRY], [new]), ([], [])]:
        replace_file(key_file, key_set(*entries))
        clock.advance(1_000)
        generations.append(gate.current_generation())
        for one in (old, new):
            if one in accepted:
                assert (await gate.verify(one)).generation == generations[-1]
            else:
                with pytest.raises(Unauthenticated):
                    await gate.verify(one)
    assert generations == sorted(set(generations))


async def test_a_file_is_checked_once_a_second(clock: ManualClock, key_file: Path) -> None:
    """Regardless of the number of calls."""
    gate = open_file(key_file, clock)
    before = gate.current_generation()
    replace_file(key_file, key_set(NEW_ENTRY))
    clock.advance(999)
    assert gate.current_generation() == before
    await gate.verify(token(clock, OLD, "old"))
    clock.advance(1)
    assert gate.current_generation() > before


async def test_a_file_written_in_place_is_reloaded_too(clock: ManualClock, key_file: Path) -> None:
    """Although size, inode and even the timestamp may be the same."""
    gate = open_file(key_file, clock)
    for entry in (NEW_ENTRY, OLD_ENTRY, NEW_ENTRY, OLD_ENTRY):
        before = gate.current_generation()
        overwrite(key_file, key_set(entry))
        clock.advance(1_000)
        assert gate.current_generation() > before


def test_an_unchanged_file_is_not_read_again(clock: ManualClock, key_file: Path) -> None:
    """Once its timestamp is old enough to be trusted."""
    clock.jump_wall(10**14 - clock.wall_ms())
    reads = []

    def parse(document: bytes) -> Any:
        reads.append(document)
        return parse_key_set(document)

    source = KeyFile("jwks_file", key_file, parse, clock, stale_s=10)
    for _ in range(20):
        clock.advance(1_000)
        source.look()
    assert len(reads) == 1
    assert source.generation == 1
    key_file.touch()
    clock.advance(1_000)
    source.look()
    assert source.generation == 1


@pytest.mark.parametrize("damage", ["{", "", '{"keys": 5}', "x" * (DOCUMENT_BYTES_MAX + 1), None])
async def test_a_damaged_file_keeps_the_last_good_keys_for_a_while(
    clock: ManualClock, key_file: Path, damage: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Then every token is refused until it is repaired. The log says so once."""
    gate = open_file(key_file, clock, jwks_refresh_s=10, jwks_stale_s=10, leeway_s=3_600)
    good = token(clock, OLD, "old")
    damage_file(key_file, damage)
    for _ in range(9):
        clock.advance(1_000)
        await gate.verify(good)
    assert len(caplog.records) == 1
    before = gate.current_generation()
    clock.advance(1_000)
    assert gate.current_generation() > before
    with pytest.raises(Unavailable, match="Tokens cannot be verified now"):
        await gate.verify(good)
    replace_file(key_file, key_set(OLD_ENTRY))
    clock.advance(1_000)
    await gate.verify(good)


async def test_old_and_new_shared_secrets_overlap_during_rotation(clock: ManualClock, tmp_path: Path) -> None:
    """One secret per line."""
    path, other = tmp_path / "secret", SECRET[::-1]
    path.write_text(SECRET)
    gate = JwtVerifier(JwtSettings(secret_file=str(path)), clock)
    old, new = signed(claims(clock), SECRET, "HS256"), signed(claims(clock), other, "HS256")
    await gate.verify(old)
    replace_file(path, f"{other}\r\n{SECRET}\r\n")
    clock.advance(1_000)
    await gate.verify(old)
    await gate.verify(new)
    replace_file(path, other)
    clock.advance(1_000)
    await gate.verify(new)
    with pytest.raises(Unauthenticated):
        await gate.verify(old)


# ---- URLs ----


class KeyServer:
    """A real HTTP server for key sets, on its own port."""

    def __init__(self) -> None:
        self.document = key_set(OLD_ENTRY).encode()
        self.status = 200
        self.headers: dict[str, str] = {}
        self.asked = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked += 1
                server.may_answer.wait()
                moved = self.path == "/moved"
                document = key_set(NEW_ENTRY).encode() if moved else server.document
                self.send_response(200 if moved else server.status)
                for name, value in {"Content-Length": str(len(document)), **server.headers}.items():
                    self.send_header(name, value)
                with contextlib.suppress(ConnectionError):  # the client may have given up
                    self.end_headers()
                    self.wfile.write(document)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}/keys"

    def stop(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[KeyServer]:
    """Run a key server for the test."""
    server = KeyServer()
    yield server
    server.stop()


@pytest.fixture
def gate(server: KeyServer, clock: ManualClock) -> Iterator[JwtVerifier]:
    """Open a verifier that fetches from the key server."""
    gate = JwtVerifier(JwtSettings(jwks_url=server.url, leeway_s=3_600, jwks_stale_s=1_800), clock)
    yield gate
    gate.close()


def source(gate: JwtVerifier) -> KeyUrl:
    """Return the key source of a verifier."""
    (found,) = gate._distinct_sources
    assert isinstance(found, KeyUrl)
    return found


def let_fetch_end(gate: JwtVerifier) -> int:
    """Check the source, wait for the fetch that this started, and check again."""
    gate.current_generation()
    fetch = source(gate)._fetch
    if fetch is not None:
        wait([fetch])
    return gate.current_generation()


async def test_a_url_is_fetched_on_first_use_and_then_cached(
    gate: JwtVerifier, server: KeyServer, clock: ManualClock
) -> None:
    """Concurrent callers wait for one fetch."""
    gate.current_generation()
    assert server.asked == 0
    good = token(clock, OLD, "old")
    await asyncio.gather(*(gate.verify(good) for _ in range(20)))
    clock.advance(299_000)
    await gate.verify(good)
    assert server.asked == 1


async def test_52_a_url_is_refetched_and_removed_keys_are_refused(
    gate: JwtVerifier, server: KeyServer, clock: ManualClock
) -> None:
    """After the refresh interval, in the background: no caller waits."""
    old, new = token(clock, OLD, "old"), token(clock, NEW, "new")
    before = (await gate.verify(old)).generation
    server.document = key_set(NEW_ENTRY).encode()
    clock.advance(300_000)
    assert let_fetch_end(gate) > before
    await gate.verify(new)
    with pytest.raises(Unauthenticated):
        await gate.verify(old)


async def test_an_unchanged_set_keeps_its_generation(gate: JwtVerifier, server: KeyServer, clock: ManualClock) -> None:
    """Cached verifications stay valid; the order of entries does not matter."""
    server.document = key_set(OLD_ENTRY, NEW_ENTRY).encode()
    before = (await gate.verify(token(clock, OLD, "old"))).generation
    server.document = key_set(NEW_ENTRY, OLD_ENTRY).encode()
    clock.advance(300_000)
    assert let_fetch_end(gate) == before
    assert server.asked == 2


async def test_an_unknown_key_id_triggers_a_fetch_at_most_every_ten_seconds(
    gate: JwtVerifier, server: KeyServer, clock: ManualClock
) -> None:
    """A new key works at once, and invented IDs cannot flood the issuer."""
    await gate.verify(token(clock, OLD, "old"))
    server.document = key_set(OLD_ENTRY, NEW_ENTRY).encode()
    new = token(clock, NEW, "new")
    with pytest.raises(Unauthenticated):
        await gate.verify(new)
    assert server.asked == 1
    clock.advance(10_000)
    await gate.verify(new)
    assert server.asked == 2
    for number in range(50):
        with pytest.raises(Unauthenticated):
            await gate.verify(token(clock, NEW, f"made-up-{number}"))
    assert server.asked == 2
    await gate.verify(token(clock, OLD, "old"))


@pytest.mark.parametrize(
    ("status", "document", "headers"),
    [
        (500, b"", {}),
        (404, key_set(NEW_ENTRY).encode(), {}),
        (200, b"<html>", {}),
        (200, key_set(NEW_ENTRY).encode() + b" " * DOCUMENT_BYTES_MAX, {}),
        (302, b"", {"Location": "/moved"}),
        (200, b"", {"Content-Length": "nonsense"}),
    ],
)
async def test_failures_keep_the_last_good_keys_until_they_are_stale(
    gate: JwtVerifier, server: KeyServer, clock: ManualClock, status: int, document: bytes, headers: dict[str, str]
) -> None:
    """The fetch is retried every ten seconds. Then tokens are refused until keys are available again."""
    good = token(clock, OLD, "old")
    before = (await gate.verify(good)).generation
    server.status, server.document, server.headers = status, document, headers
    clock.advance(300_000)
    assert let_fetch_end(gate) == before
    await gate.verify(good)
    asked = server.asked
    clock.advance(9_999)
    let_fetch_end(gate)
    assert server.asked == asked
    clock.advance(1)
    let_fetch_end(gate)
    assert server.asked == asked + 1
    clock.advance(1_800_000 - 310_000 - 1)
    assert let_fetch_end(gate) == before
    clock.advance(10_000)
    assert let_fetch_end(gate) > before
    with pytest.raises(Unavailable):
        await gate.verify(good)
    server.status, server.document, server.headers = 200, key_set(OLD_ENTRY).encode(), {}
    clock.advance(10_000)
    await gate.verify(good)


async def test_a_server_that_is_down_from_the_start_is_unavailable(clock: ManualClock) -> None:
    """Rather than unauthenticated: the token may be valid, and a retry may help."""
    server = KeyServer()
    server.stop()
    gate = JwtVerifier(JwtSettings(jwks_url=server.url), clock)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await gate.verify(token(clock, OLD, "old"))
    gate.close()
    with pytest.raises(Unavailable):
        await gate.verify(token(clock, OLD, "old"))


async def test_a_fetch_has_a_timeout(
    gate: JwtVerifier, server: KeyServer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers wait for a bounded time, and not at all if valid keys are cached."""
    monkeypatch.setattr("tenantq.gates.key_set.FETCH_TIMEOUT_S", 0.02)
    server.may_answer.clear()
    with pytest.raises(Unavailable):
        await gate.verify(token(clock, OLD, "old"))
    server.may_answer.set()
    clock.advance(10_000)
    monkeypatch.setattr("tenantq.gates.key_set.FETCH_TIMEOUT_S", 5)
    let_fetch_end(gate)
    await gate.verify(token(clock, OLD, "old"))


async def test_after_a_long_idle_time_the_first_caller_waits_for_new_keys(
    gate: JwtVerifier, server: KeyServer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys that are too old are not used, and no failure is logged."""
    await gate.verify(token(clock, OLD, "old"))
    clock.advance(8 * 3_600_000)
    await gate.verify(token(clock, OLD, "old"))
    assert server.asked == 2
    assert not caplog.records


async def test_a_caller_that_gives_up_does_not_stop_the_fetch_for_others(
    gate: JwtVerifier, server: KeyServer, clock: ManualClock
) -> None:
    """Cancelling one caller leaves the others waiting."""
    good = token(clock, OLD, "old")
    first, second = (asyncio.ensure_future(gate.verify(good)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).principal.tenant == "acme"
    assert server.asked == 1


@pytest.mark.parametrize(
    "url",
    [
        "https://keys.example/jwks",
        "https://keys.example:8443",
        "http://127.0.0.1:1/x",
        "http://localhost",
        "http://[::1]:8/x",
    ],
)
def test_https_and_loopback_urls_are_allowed(url: str) -> None:
    """They are returned unchanged."""
    assert check_secure_url("jwks_url", url) == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "keys.example",
        "http://keys.example",
        "http://10.0.0.1/x",
        "http://127.0.0.1.example/",
        "ftp://keys.example",
        "file:///etc/passwd",
        "https://",
        "https://user:word@keys.example",
        "https://keys.example:port",
        "https://[::1",
        "https://keys.example/a b",
        "https://keys.example/\n",
        "data:application/json,{}",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    """A key set that can be changed in transit is worthless."""
    with pytest.raises(Invalid, match="jwks_url: "):
        check_secure_url("jwks_url", url)
