"""JSON Web Tokens: which are accepted, which are refused, and what they grant."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenantq.domain.access import ACTIONS, ROLES, Grant, Principal
from tenantq.domain.validation import build
from tenantq.errors import Forbidden, Invalid, Unauthenticated
from tenantq.gates.json_web_token import JwtSettings, JwtVerifier
from tests.unit.gates.credentials import (
    SECRET,
    base64url,
    claims,
    key_set,
    private_key,
    public_jwk,
    signed,
    signed_raw,
    unchecked_token,
    verifier,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock

REFUSED = Unauthenticated().message
JTI = "0192f0c1"
KINDS = [("RS256", "RSA"), ("ES256", "P-256"), ("EdDSA", "Ed25519")]


async def refused(verifier: JwtVerifier, token: str) -> None:
    """Assert that a token is refused with the one error text, which reveals nothing."""
    with pytest.raises(Unauthenticated) as caught:
        await verifier.verify(token)
    assert caught.value.message == REFUSED


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    """Write a file with one shared secret."""
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    return str(path)


# ---- accepted tokens ----


@pytest.mark.parametrize(("algorithm", "kind"), KINDS)
async def test_each_algorithm_verifies_its_own_kind_of_key(
    clock: ManualClock, tmp_path: Path, algorithm: str, kind: str
) -> None:
    """With and without the key ID in the header."""
    gate = verifier(clock, tmp_path)
    body = claims(clock, jti=JTI)
    for header in ({"kid": kind}, {}):
        token = await gate.verify(signed(body, private_key(kind), algorithm, **header))
        assert token.principal == Principal(
            "jwt:worker-7", "acme", (Grant(role="producer"),), (body["exp"] + 30) * 1_000
        )
        assert token.token_id == JTI


async def test_a_shared_secret_verifies_hs256(clock: ManualClock, secret_file: str) -> None:
    """With a configured secret file and any key ID."""
    gate = JwtVerifier(JwtSettings(secret_file=secret_file), clock)
    for header in ({}, {"kid": "any"}):
        token = await gate.verify(signed(claims(clock), SECRET, "HS256", **header))
        assert token.principal.tenant == "acme"


async def test_further_algorithms_can_be_allowed(clock: ManualClock, tmp_path: Path) -> None:
    """Each is bound to its kind of key."""
    gate = verifier(clock, tmp_path, algorithms=("ES384", "PS256", "RS512"))
    for algorithm, kind in [("ES384", "P-384"), ("PS256", "RSA"), ("RS512", "RSA")]:
        assert (await gate.verify(signed(claims(clock), private_key(kind), algorithm))).principal.id == "jwt:worker-7"
    await refused(gate, signed(claims(clock), private_key("RSA"), "RS256"))


# ---- refused tokens ----


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", None, 5, ["RS256"]])
async def test_no_token_without_a_signature_is_accepted(
    clock: ManualClock, tmp_path: Path, secret_file: str, name: object
) -> None:
    """Algorithm none in any spelling, with an empty signature, a missing one, or any other."""
    gate = verifier(clock, tmp_path, secret_file=secret_file)
    token = unchecked_token({"typ": "JWT", "alg": name}, claims(clock))
    for spelled in (token, token.rstrip("."), token + "AAAA"):
        await refused(gate, spelled)


@pytest.mark.parametrize("with_secret", [True, False])
@pytest.mark.parametrize("kind", ["RSA", "P-256", "Ed25519"])
async def test_a_public_key_is_never_used_as_a_shared_secret(
    clock: ManualClock, tmp_path: Path, secret_file: str, kind: str, *, with_secret: bool
) -> None:
    """Key confusion: the public key in any form as HMAC secret, also if shared secrets are accepted."""
    gate = verifier(clock, tmp_path, **({"secret_file": secret_file} if with_secret else {}))
    public = private_key(kind).public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    entry = json.dumps(public_jwk(private_key(kind), kid=kind)).encode()
    for secret in (pem, pem.strip(), der, entry, b""):
        for header in ({"kid": kind}, {}):
            await refused(gate, unchecked_token({"alg": "HS256", **header}, claims(clock), secret))
            await refused(gate, unchecked_token({"alg": "RS256", **header}, claims(clock), secret))


async def test_a_key_verifies_no_other_kind_of_algorithm(clock: ManualClock, tmp_path: Path) -> None:
    """The algorithm and key ID in the header must match."""
    gate = verifier(clock, tmp_path)
    for algorithm, kind in KINDS:
        for _, other in KINDS:
            if other != kind:
                await refused(gate, signed(claims(clock), private_key(kind), algorithm, kid=other))


async def test_a_key_that_is_not_in_the_set_verifies_nothing(clock: ManualClock, tmp_path: Path) -> None:
    """Neither under a known key ID nor without one, nor if the token itself contains the key."""
    gate = verifier(clock, tmp_path)
    stranger = private_key("RSA", 1)
    for header in ({"kid": "RSA"}, {}, {"jwk": public_jwk(stranger)}, {"jku": "https://keys.example"}, {"kid": "../x"}):
        await refused(gate, signed(claims(clock), stranger, "RS256", **header))


async def test_a_signature_of_zeros_is_refused(clock: ManualClock, tmp_path: Path) -> None:
    """Some elliptic-curve implementations have accepted it."""
    head = signed(claims(clock), private_key("P-256"), "ES256").rpartition(".")[0]
    await refused(verifier(clock, tmp_path), f"{head}.{base64url(bytes(64))}")


@pytest.mark.parametrize(
    "header", [{"crit": ["exp"], "exp": 1}, {"crit": ["b64"], "b64": True}, {"crit": []}, {"kid": 7}]
)
async def test_unknown_critical_headers_are_refused(
    clock: ManualClock, tmp_path: Path, secret_file: str, header: dict[str, Any]
) -> None:
    """A critical header that is not understood cannot be ignored."""
    gate = JwtVerifier(JwtSettings(secret_file=secret_file), clock)
    await refused(gate, unchecked_token({"alg": "HS256", **header}, claims(clock), SECRET.encode()))


async def test_expiry_counts_to_the_millisecond_with_leeway(clock: ManualClock, tmp_path: Path) -> None:
    """The default leeway is thirty seconds."""
    gate, strict = verifier(clock, tmp_path), verifier(clock, tmp_path, leeway_s=0)
    token = signed(claims(clock, exp=clock.wall_ms() // 1_000 + 10))
    clock.advance(9_999)
    await strict.verify(token)
    clock.advance(1)
    await refused(strict, token)
    clock.advance(29_999)
    await gate.verify(token)
    clock.advance(1)
    await refused(gate, token)


@pytest.mark.parametrize("name", ["nbf", "iat"])
async def test_a_token_not_yet_valid_is_refused(clock: ManualClock, tmp_path: Path, name: str) -> None:
    """Until its start, less the leeway."""
    gate = verifier(clock, tmp_path)
    token = signed(claims(clock, **{name: clock.wall_ms() // 1_000 + 31}))
    await refused(gate, token)
    clock.advance(1_000)
    await gate.verify(token)


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("value", [None, "soon", "1800000000", True, -1, 1e400, 10**400, [], {}, 253_402_300_800])
async def test_malformed_times_are_refused(clock: ManualClock, tmp_path: Path, name: str, value: object) -> None:
    """Of any type and size."""
    body = claims(clock, **{name: ...})
    raw = json.dumps(body)[:-1] + f', "{name}": {"1e400" if value == 1e400 else json.dumps(value)}}}'
    await refused(verifier(clock, tmp_path), signed_raw(raw.encode()))


@pytest.mark.parametrize("name", ["exp", "sub"])
async def test_expiry_and_subject_are_required(clock: ManualClock, tmp_path: Path, name: str) -> None:
    """A token without them is refused."""
    await refused(verifier(clock, tmp_path), signed(claims(clock, **{name: ...})))


@pytest.mark.parametrize("name", ["sub", "jti"])
@pytest.mark.parametrize("value", ["", "x" * 257, "a\nb", "a\0b", "a\u202eb", "\ud800", 7, None, ["x"], {"x": 1}])
async def test_malformed_subjects_and_ids_are_refused(
    clock: ManualClock, tmp_path: Path, name: str, value: object
) -> None:
    """They are stored, logged and compared, so they must have 1 to 256 printable characters."""
    raw = json.dumps(claims(clock, **{name: value})).encode()
    await refused(verifier(clock, tmp_path), signed_raw(raw))


async def test_the_issuer_has_to_be_the_configured_one(clock: ManualClock, tmp_path: Path) -> None:
    """Exactly, and it must be present."""
    gate = verifier(clock, tmp_path, issuer="https://issuer.example")
    await gate.verify(signed(claims(clock, iss="https://issuer.example")))
    for issuer in ("https://issuer.example/", "https://evil.example", "", ...):
        await refused(gate, signed(claims(clock, iss=issuer)))
    for malformed in (None, ["https://issuer.example"], 5):
        await refused(gate, signed_raw(json.dumps(claims(clock, iss=malformed)).encode()))


async def test_the_audience_has_to_be_the_configured_one(clock: ManualClock, tmp_path: Path) -> None:
    """As text or in a list. A token for another audience is refused, also if none is configured."""
    gate = verifier(clock, tmp_path, audience="tenantq")
    await gate.verify(signed(claims(clock, aud="tenantq")))
    await gate.verify(signed(claims(clock, aud=["other", "tenantq"])))
    for audience in ("other", "", [], ["other"], ["tenantq", 5], "tenantq2", None, 5, {"tenantq": 1}, ...):
        await refused(gate, signed(claims(clock, aud=audience)))
    await refused(verifier(clock, tmp_path), signed(claims(clock, aud="tenantq")))


async def test_truncated_tokens_are_refused(clock: ManualClock, tmp_path: Path) -> None:
    """At any length."""
    gate = verifier(clock, tmp_path)
    token = signed(claims(clock))
    for length in range(len(token)):
        await refused(gate, token[:length])


async def test_huge_tokens_are_refused_before_they_are_parsed(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A validly signed megabyte is too long; the limit is a setting."""
    gate = verifier(clock, tmp_path)
    await gate.verify(signed(claims(clock, padding="x" * 5_000)))
    huge = signed(claims(clock, padding="x" * 1_000_000))
    monkeypatch.setattr("tenantq.gates.json_web_token._header", lambda _: pytest.fail("it was parsed"))
    await refused(gate, huge)
    await refused(gate, "x" * 1_000_000)
    await refused(gate, ".".join(["x" * 400_000] * 3))


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "...",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "é.é.é",
        "a b.c.d",
        "\0.\0.\0",
        "\ud800.a.b",
        "🙂.🙂.🙂",
        "AAAA.AAAA.AAAA\n",
    ],
)
async def test_garbage_is_refused(clock: ManualClock, tmp_path: Path, token: str) -> None:
    """Including text that is not base64."""
    await refused(verifier(clock, tmp_path), token)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"{",
        b"\xff\xfe",
        b"[" * 3_000,
        b'{"a":' * 1_000,
        b'{"exp": NaN}',
        b'{"x":' + b"9" * 5_000 + b"}",
    ],
)
async def test_claims_that_are_not_a_json_object_are_refused(
    clock: ManualClock, tmp_path: Path, payload: bytes
) -> None:
    """Although the signature is valid."""
    await refused(verifier(clock, tmp_path), signed_raw(payload))


@pytest.mark.parametrize(
    "header", ["", "[]", "null", "{", '{"alg":"EdDSA","alg":"EdDSA"}', "[" * 3_000, '{"alg":"EdDSA","kid":["a"]}']
)
async def test_malformed_headers_are_refused(clock: ManualClock, tmp_path: Path, header: str) -> None:
    """Before any key is looked up."""
    payload = base64url(json.dumps(claims(clock)).encode())
    await refused(verifier(clock, tmp_path), f"{base64url(header.encode())}.{payload}.{base64url(bytes(64))}")


async def test_the_reason_of_a_refusal_is_logged_without_the_token(
    clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For the operator, at debug level."""
    token = signed(claims(clock, exp=5))
    with caplog.at_level(logging.DEBUG, "tenantq"):
        await refused(verifier(clock, tmp_path), token)
    assert "a token is refused: it has expired" in caplog.text
    assert token not in caplog.text
    assert "worker-7" not in caplog.text


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "'x'", "01", "{,}"])
async def test_claims_have_to_be_strict_json(clock: ManualClock, tmp_path: Path, value: str) -> None:
    """Including claims that are not used."""
    raw = json.dumps(claims(clock))[:-1] + f', "unasked": {value}}}'
    await refused(verifier(clock, tmp_path), signed_raw(raw.encode()))


# ---- grants of a token ----


@pytest.mark.parametrize(
    ("given", "grants"),
    [
        ({"role": "consumer"}, (Grant(role="consumer"),)),
        ({"role": ["consumer", "viewer", "consumer"]}, (Grant(role="consumer"), Grant(role="viewer"))),
        ({"role": "consumer viewer"}, (Grant(role="consumer"), Grant(role="viewer"))),
        ({"role": ["offline_access", "Consumer", "consumer "]}, ()),
        ({"role": "platform-admin"}, ()),
        ({"role": ...}, ()),
        ({"role": ..., "scope": "openid add poll"}, (Grant(actions=("add", "poll")),)),
        ({"role": ..., "scope": ["add"]}, (Grant(actions=("add",)),)),
        ({"scope": "profile email"}, (Grant(role="producer"),)),
        ({"queues": ["orders-*"]}, (Grant(role="producer", queues=("orders-*",)),)),
        (
            {"scope": "peek", "queues": ["a", "b"]},
            (Grant(role="producer", queues=("a", "b")), Grant(actions=("peek",), queues=("a", "b"))),
        ),
    ],
)
async def test_roles_scopes_and_queues_become_grants(
    clock: ManualClock, tmp_path: Path, given: dict[str, Any], grants: tuple[Grant, ...]
) -> None:
    """Unknown names grant nothing."""
    token = await verifier(clock, tmp_path).verify(signed(claims(clock, **given)))
    assert token.principal.grants == grants


@pytest.mark.parametrize(
    "given",
    [
        {"role": 5},
        {"role": None},
        {"role": [["producer"]]},
        {"role": {"producer": True}},
        {"scope": 5},
        {"scope": [5]},
        {"queues": "orders"},
        {"queues": []},
        {"queues": None},
        {"queues": [5]},
        {"queues": ["a/b"]},
        {"queues": ["x" * 81]},
        {"queues": ["q"] * 33},
    ],
)
async def test_malformed_roles_scopes_and_queues_are_forbidden(
    clock: ManualClock, tmp_path: Path, given: dict[str, Any]
) -> None:
    """They are not guessed."""
    with pytest.raises(Forbidden, match="A claim of the token is malformed"):
        await verifier(clock, tmp_path).verify(signed(claims(clock, **given)))


async def test_a_token_grants_platform_admin_only_if_configured(clock: ManualClock, tmp_path: Path) -> None:
    """Such a token needs no tenant; one without the role still does."""
    token = signed(claims(clock, role=["platform-admin"], tenant=...))
    with pytest.raises(Forbidden):
        await verifier(clock, tmp_path).verify(token)
    trusting = verifier(clock, tmp_path, platform_admin=True)
    principal = (await trusting.verify(token)).principal
    assert principal.tenant is None
    assert principal.is_platform_admin
    with pytest.raises(Forbidden):
        await trusting.verify(signed(claims(clock, tenant=...)))
    inside = (await trusting.verify(signed(claims(clock, role="platform-admin")))).principal
    assert inside.tenant == "acme"
    assert not inside.is_platform_admin


# ---- fuzz ----

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["sub", "exp", "nbf", "iat", "iss", "aud", "jti", "tenant", "role", "scope", "queues"])
VALUES = JSON | st.sampled_from([*ROLES, *ACTIONS, "acme", 1_700_000_500, 1_600_000_000])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(NAMES, VALUES, max_size=6))
async def test_signed_claims_never_cause_an_internal_error(
    clock: ManualClock, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """They are accepted, or refused as the caller's fault."""
    raw = json.dumps({**claims(clock), **changes}).encode()
    try:
        token = await verifier(clock, tmp_path).verify(signed_raw(raw))
    except (Unauthenticated, Forbidden):
        return
    assert token.principal.tenant == json.loads(raw)["tenant"]
    assert token.principal.id == "jwt:" + json.loads(raw)["sub"]
    assert "platform-admin" not in [grant.role for grant in token.principal.grants]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=JSON | st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "jwk", "b64"]), JSON, max_size=4),
    body=JSON,
    signature=st.binary(max_size=80),
)
async def test_no_unsigned_token_is_accepted(
    clock: ManualClock, tmp_path: Path, header: Any, body: Any, signature: bytes
) -> None:
    """With any parts."""
    head = ".".join(base64url(json.dumps(part).encode()) for part in (header, body))
    await refused(verifier(clock, tmp_path), f"{head}.{base64url(signature)}")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=200) | st.from_regex(r"[\w=-]{0,40}\.[\w=-]{0,40}\.[\w=-]{0,40}"))
async def test_no_random_text_is_accepted(clock: ManualClock, tmp_path: Path, text: str) -> None:
    """Nor does it cause an internal error."""
    await refused(verifier(clock, tmp_path), text)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_a_modified_token_is_refused_or_equivalent(
    clock: ManualClock, tmp_path: Path, data: st.DataObject
) -> None:
    """No changed character gives other rights."""
    gate = verifier(clock, tmp_path)
    token = signed(claims(clock), private_key("P-256"), "ES256")
    place = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.= \0é"))
    changed = token[:place] + letter + token[place + data.draw(st.integers(0, 1)) :]
    try:
        found = await gate.verify(changed)
    except Unauthenticated:
        return
    assert found.principal == (await gate.verify(token)).principal


# ---- settings ----


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"jwks_file": None}, "one of them is required"),
        ({"jwks_url": "https://keys.example"}, "only one of them"),
        ({"algorithms": ("none",)}, "algorithms: unknown algorithm .'none'"),
        ({"algorithms": ("HS512",)}, "algorithms: unknown algorithm .'HS512'"),
        ({"algorithms": ("HS256",)}, "HS256 requires secret_file"),
        ({"leeway_s": -1}, "leeway_s"),
        ({"leeway_s": 3_601}, "leeway_s"),
        ({"jwks_refresh_s": 9}, "jwks_refresh_s"),
        ({"jwks_stale_s": 299}, "jwks_stale_s"),
        ({"token_bytes_max": 100_000}, "token_bytes_max"),
        ({"cache_max": 0}, "cache_max"),
        ({"tenant_claims": ()}, "tenant_claims"),
        ({"tenant_claims": ("tenant", "tenant")}, "tenant_claims"),
        ({"tenant_claims": ("tenant", "role")}, "tenant_claims"),
        ({"role_claim": ""}, "role_claim"),
        ({"issuer": ""}, "issuer"),
        ({"audience": ""}, "audience"),
        ({"jwks_file": None, "jwks_url": "http://keys.example"}, "jwks_url"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any], field: str) -> None:
    """The error names the field."""
    with pytest.raises(Invalid, match=field):
        build(JwtSettings, {"jwks_file": "keys.json", **changes})


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"keys": 5}', '{"keys": {}}', "not json", '{"keys": [' + "{}," * 64 + "{}]}"]
)
def test_an_invalid_key_file_stops_the_startup(clock: ManualClock, tmp_path: Path, text: str) -> None:
    """The error names the setting and the file."""
    path = tmp_path / "keys.json"
    path.write_text(text)
    with pytest.raises(Invalid, match=r"jwks_file: .*keys\.json: "):
        JwtVerifier(JwtSettings(jwks_file=str(path)), clock)


def test_a_missing_key_file_stops_the_startup(clock: ManualClock, tmp_path: Path) -> None:
    """So does an impossible path."""
    for name in ("nowhere", "a\0b"):
        with pytest.raises(Invalid, match=r"jwks_file: .*it cannot be read"):
            JwtVerifier(JwtSettings(jwks_file=str(tmp_path / name)), clock)


@pytest.mark.parametrize(
    "secret",
    ["", "\n\n", "short", f"{SECRET}\nshort", "x" * 31, "\0" * 40, "x" * 40 + "\x07", "\n".join([SECRET] * 65)],
)
def test_invalid_shared_secrets_stop_the_startup(clock: ManualClock, tmp_path: Path, secret: str) -> None:
    """Too short, too many, or not text."""
    path = tmp_path / "secret"
    path.write_text(secret)
    with pytest.raises(Invalid, match="secret_file: ") as caught:
        JwtVerifier(JwtSettings(secret_file=str(path)), clock)
    assert SECRET not in caught.value.message


@pytest.mark.parametrize("kind", ["RSA", "P-256", "Ed25519"])
def test_a_public_key_in_the_secret_file_stops_the_startup(clock: ManualClock, tmp_path: Path, kind: str) -> None:
    """A public key as secret would let everyone sign."""
    public = private_key(kind).public_key()
    forms = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        json.dumps(public_jwk(private_key(kind))).encode(),
        key_set(public_jwk(private_key(kind))).encode(),
    ]
    for form in forms:
        path = tmp_path / "secret"
        path.write_bytes(form)
        with pytest.raises(Invalid, match="secret_file: "):
            JwtVerifier(JwtSettings(secret_file=str(path)), clock)
