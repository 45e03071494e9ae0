"""The provider azure-kv: Azure's own client, over TLS, against a double that checks every call and answers as Key Vault does.

The client sends tokens over TLS only and compares the vault's address with what the vault asks a token for. Both hold here: the
double has a certificate of the test's own authority, and asks for a token for an address that 127.0.0.1 belongs to by its text.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import logging
import os
import random
import re
import ssl
import time
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, keywrap, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import NameOID

from tenantq.errors import DecryptionFailed, Invalid, KeyDisabled, KmsDenied, KmsError, KmsUnavailable
from tenantq.kms.azure import AzureKms
from tenantq.kms.resilient import ResilientKms
from tenantq.kms.settings import AzureSettings, RetrySettings
from tenantq.runtime.clock import SystemClock
from tests.unit.kms.http_double import Answer, HttpDouble, RecordedRequest, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

CONTEXT = {"tenantq": "data-key", "tenant": "7", "number": "1"}
KEY = b"0123456789abcdef0123456789ABCDEF"
OAEP = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
RSA_KEYS = [rsa.generate_private_key(65_537, 2_048) for _ in range(2)]


def refusal(status: int, code: str, inner: str | None = None) -> Answer:
    """Return an error in the format of Key Vault."""
    error: dict[str, Any] = {"code": code, "message": "of the vault of acme: no"}
    if inner is not None:
        error["innererror"] = {"code": inner}
    return Answer(status, {"error": error})


def text_of(raw: bytes) -> str:
    """Return bytes encoded like Key Vault does."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def bytes_of(text: str) -> bytes:
    """Decode such a text."""
    assert "=" not in text
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class KeyVault(HttpDouble):
    """A vault with an RSA key ``main``, a symmetric key ``sym`` and an elliptic-curve key ``curve``, each with versions."""

    def __init__(self) -> None:
        super().__init__(self.serve)
        self.keys: dict[str, list[Any]] = {"main": RSA_KEYS[:1], "sym": [os.urandom(32)], "curve": [object()]}
        self.disabled: set[str] = set()
        self.shown_as_disabled = False  # the key's properties say so, rather than the status

    @property
    def url(self) -> str:
        """The vault's address."""
        return f"https://127.0.0.1:{self.port}"

    def serve(self, request: RecordedRequest) -> Answer:
        """Check the call as strictly as the real service, and execute it."""
        if "authorization" not in request.headers:
            assert request.body == b"", "nothing but an empty request goes out before the vault is known"
            challenge = f'Bearer authorization="https://login.example/11111111-2222-3333-4444-555555555555", resource="https://0.0.1:{self.port}"'
            return refusal(401, "Unauthorized")._replace(headers={"WWW-Authenticate": challenge})
        if request.headers["authorization"] != "Bearer the-token":
            return refusal(401, "Unauthorized")
        assert re.fullmatch(r"api-version=[0-9a-z.-]+", request.query), request.query
        found = re.fullmatch(r"/keys/([A-Za-z0-9-]+)(?:/(v\d+))?(?:/(wrapkey|unwrapkey))?/?", request.path)
        assert found is not None, request.path
        name, version, operation = found[1], found[2], found[3]
        if name not in self.keys:
            return refusal(404, "KeyNotFound")
        if name in self.disabled and not (self.shown_as_disabled and operation is None):
            return refusal(403, "Forbidden", "KeyDisabled")
        number = int(version[1:]) if version is not None else len(self.keys[name])
        if operation is None:
            assert request.method == "GET"
            return self._facts(name, number)
        assert request.method == "POST"
        assert version is not None
        assert set(request.json) == {"alg", "value"}
        return self._operate(name, number, operation, request.json["alg"], bytes_of(request.json["value"]))

    def _facts(self, name: str, number: int) -> Answer:
        kid = f"{self.url}/keys/{name}/v{number}"
        attributes = {"enabled": name not in self.disabled, "created": 1, "updated": 1, "recoveryLevel": "Recoverable"}
        key: dict[str, Any] = {"kid": kid, "kty": {"sym": "oct-HSM", "curve": "EC"}.get(name, "RSA")}
        if name == "main":
            public = self.keys[name][number - 1].public_key().public_numbers()
            key |= {"n": text_of(public.n.to_bytes(256)), "e": text_of(public.e.to_bytes(3))}
        return Answer(200, {"key": {**key, "key_ops": ["wrapKey", "unwrapKey"]}, "attributes": attributes})

    def _operate(self, name: str, number: int, operation: str, algorithm: str, value: bytes) -> Answer:
        key = self.keys[name][number - 1]
        assert algorithm == {"main": "RSA-OAEP-256", "sym": "A256KW"}[name]
        try:
            if name == "main":
                done = key.public_key().encrypt(value, OAEP) if operation == "wrapkey" else key.decrypt(value, OAEP)
            else:
                done = (keywrap.aes_key_wrap if operation == "wrapkey" else keywrap.aes_key_unwrap)(key, value)
        except (ValueError, keywrap.InvalidUnwrap):
            return refusal(400, "BadParameter")
        return Answer(200, {"kid": f"{self.url}/keys/{name}/v{number}", "value": text_of(done)})


class StaticCredential:
    """Returns one token without a request."""

    def __init__(self, token: str = "the-token") -> None:  # noqa: S107  # of the double
        self.token = token
        self.scopes: list[str] = []

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        """Return the token."""
        self.scopes += scopes
        return AccessToken(self.token, int(time.time()) + 3_600)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a self-signed certificate for 127.0.0.1 and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the double's")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "double.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
    return path


@pytest.fixture
def vault(authority: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeyVault]:
    """Serve the double with a trusted certificate."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority)
    with serving(KeyVault(), tls) as vault:
        assert isinstance(vault, KeyVault)
        yield vault


def provider(vault: KeyVault, credential: Any = None, call_ms: int = 5_000) -> AzureKms:
    """Open the provider with a token that needs no server."""
    return AzureKms(AzureSettings(vaults=(vault.url,)), call_ms=call_ms, credential=credential or StaticCredential())


@pytest.fixture
async def kms(vault: KeyVault) -> AsyncIterator[AzureKms]:
    """Open the provider."""
    kms = provider(vault)
    yield kms
    await kms.close()


@pytest.mark.parametrize("name", ["main", "sym"])
async def test_a_wrapped_key_unwraps_only_in_the_same_context(kms: AzureKms, vault: KeyVault, name: str) -> None:
    """By RSA-OAEP-256 or AES key wrap; the double checks token, paths, versions and algorithms."""
    key = f"{vault.url}/keys/{name}"
    wrapped = await kms.wrap(key, KEY, CONTEXT)
    assert KEY not in wrapped
    assert await kms.unwrap(key, wrapped, CONTEXT) == KEY
    calls = [(request.method, request.path) for request in vault.requests if "authorization" in request.headers]
    assert [(method, path.rstrip("/")) for method, path in calls] == [
        ("GET", f"/keys/{name}"),
        ("POST", f"/keys/{name}/v1/wrapkey"),
        ("POST", f"/keys/{name}/v1/unwrapkey"),
    ]
    for context in ({}, {**CONTEXT, "tenant": "8"}):
        with pytest.raises(DecryptionFailed, match="another context"):
            await kms.unwrap(key, wrapped, context)
    with pytest.raises(DecryptionFailed):
        await kms.unwrap(key, wrapped[:-1] + bytes([wrapped[-1] ^ 1]), CONTEXT)


async def test_the_token_is_requested_for_the_scope_that_the_vault_names(vault: KeyVault) -> None:
    """It is sent to no other address."""
    credential = StaticCredential()
    kms = provider(vault, credential)
    await kms.wrap(f"{vault.url}/keys/main", KEY, CONTEXT)
    assert set(credential.scopes) == {f"https://0.0.1:{vault.port}/.default"}
    await kms.close()


async def test_a_rotated_key_wraps_with_the_new_version_and_unwraps_with_the_old(
    kms: AzureKms, vault: KeyVault
) -> None:
    """Wrapped bytes name their version. A key named with a version stays at it."""
    key = f"{vault.url}/keys/main"
    old = await kms.wrap(key, KEY, CONTEXT)
    vault.keys["main"] = RSA_KEYS
    new = await kms.wrap(key, KEY, CONTEXT)
    pinned = await kms.wrap(key + "/v1", KEY, CONTEXT)
    assert [wrapped[2:4] for wrapped in (old, new, pinned)] == [b"v1", b"v2", b"v1"]
    for wrapped in (old, new, pinned):
        assert await kms.unwrap(key, wrapped, CONTEXT) == KEY


async def test_a_disabled_or_missing_key_is_refused(kms: AzureKms, vault: KeyVault) -> None:
    """For wrapping and unwrapping, whether the status or the key's properties say so. An enabled key works again."""
    key = f"{vault.url}/keys/main"
    wrapped = await kms.wrap(key, KEY, CONTEXT)
    vault.disabled.add("main")
    for call in (kms.wrap(key, KEY, CONTEXT), kms.unwrap(key, wrapped, CONTEXT)):
        with pytest.raises(KeyDisabled, match="KeyDisabled"):
            await call
    vault.shown_as_disabled = True
    with pytest.raises(KeyDisabled):
        await kms.wrap(key, KEY, CONTEXT)
    vault.disabled.clear()
    assert await kms.unwrap(key, wrapped, CONTEXT) == KEY
    with pytest.raises(KeyDisabled, match="KeyNotFound"):
        await kms.wrap(key + "-gone", KEY, CONTEXT)
    with pytest.raises(KeyDisabled, match="KeyNotFound"):
        await kms.unwrap(key + "-gone", wrapped, CONTEXT)


async def test_a_key_of_another_kind_cannot_wrap(kms: AzureKms, vault: KeyVault) -> None:
    """The error says which kinds can."""
    with pytest.raises(KmsError, match="RSA or a symmetric key"):
        await kms.wrap(f"{vault.url}/keys/curve", KEY, CONTEXT)


@pytest.mark.parametrize("operation", ["wrap", "unwrap"])
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (refusal(403, "Forbidden", "ForbiddenByPolicy"), KmsDenied),
        (refusal(403, "Forbidden"), KmsDenied),
        (refusal(409, "Conflict", "ObjectIsBeingDeleted"), KeyDisabled),
        (refusal(403, "Forbidden", "KeyExpired"), KeyDisabled),
        (refusal(429, "Throttled"), KmsUnavailable),
        (refusal(503, "ServiceUnavailable"), KmsUnavailable),
        (refusal(500, "InternalServerError"), KmsUnavailable),
        (Answer(502, b"<html>bad gateway</html>", {"Content-Type": "text/html"}), KmsUnavailable),
        (Answer(302, b"", {"Location": "https://elsewhere.example/"}), KmsError),
        ("reset", KmsUnavailable),
    ],
)
async def test_every_refusal_is_a_typed_error(
    kms: AzureKms, vault: KeyVault, fault: Answer | str, kind: type[Exception], operation: str
) -> None:
    """Azure's client neither retries nor follows redirects, and vault details in its error are left out."""
    key = f"{vault.url}/keys/main"
    wrapped = await kms.wrap(key, KEY, CONTEXT)
    before = len(vault.requests)
    vault.faults = [fault]
    with pytest.raises(kind) as caught:
        await (kms.wrap(key, KEY, CONTEXT) if operation == "wrap" else kms.unwrap(key, wrapped, CONTEXT))
    assert type(caught.value) is kind
    assert len(vault.requests) == before + 1
    assert "acme" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "body", [b"", b"<html>", {}, [], {"value": None}, {"value": 5}, {"value": "A"}, {"other": "AA"}]
)
async def test_a_malformed_answer_is_a_typed_error(kms: AzureKms, vault: KeyVault, body: Any) -> None:
    """A proxy may have sent it."""
    key = f"{vault.url}/keys/main"
    wrapped = await kms.wrap(key, KEY, CONTEXT)
    vault.faults = [Answer(200, body)]
    with pytest.raises(KmsError):
        await kms.unwrap(key, wrapped, CONTEXT)


async def test_the_retry_time_is_taken_from_the_answer(kms: AzureKms, vault: KeyVault) -> None:
    """If it has one."""
    vault.faults = [refusal(429, "Throttled")._replace(headers={"Retry-After": "3"})]
    with pytest.raises(KmsUnavailable) as caught:
        await kms.wrap(f"{vault.url}/keys/main", KEY, CONTEXT)
    assert caught.value.retry_after_ms == 3_000


async def test_unusable_credentials_are_reported(vault: KeyVault) -> None:
    """Refused by the vault, or not available at all."""
    key = f"{vault.url}/keys/main"
    refused = provider(vault, StaticCredential("another-token"))
    with pytest.raises(KmsDenied):
        await refused.wrap(key, KEY, CONTEXT)

    class NoCredential:
        def get_token(self, *_: str, **__: Any) -> AccessToken:
            raise ClientAuthenticationError("the client secret xyz is wrong")

    without = provider(vault, NoCredential())
    with pytest.raises(KmsDenied, match="no valid Azure credentials") as caught:
        await without.wrap(key, KEY, CONTEXT)
    assert "xyz" not in str(caught.value)
    await refused.close()
    await without.close()


async def test_timeouts_and_unreachable_servers_are_outages(vault: KeyVault) -> None:
    """The client itself times out."""
    kms = provider(vault, call_ms=200)
    vault.faults = ["hang"]
    with pytest.raises(KmsUnavailable):
        await kms.wrap(f"{vault.url}/keys/main", KEY, CONTEXT)
    await kms.close()
    nowhere = AzureKms(AzureSettings(vaults=("https://127.0.0.1:1",)), credential=StaticCredential())
    with pytest.raises(KmsUnavailable, match="ServiceRequestError"):
        await nowhere.wrap("https://127.0.0.1:1/keys/main", KEY, CONTEXT)
    await nowhere.close()


async def test_a_vault_whose_certificate_is_not_trusted_gets_nothing(
    vault: KeyVault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the token nor the key is sent."""
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    kms = provider(vault)
    with pytest.raises(KmsUnavailable):
        await kms.wrap(f"{vault.url}/keys/main", KEY, CONTEXT)
    assert vault.requests == []
    await kms.close()


async def test_throttling_is_retried_and_health_is_reported(kms: AzureKms, vault: KeyVault) -> None:
    """With the resilient wrapper, a throttled call and an outage are followed by a successful call, and a disabled key is visible."""
    key = f"{vault.url}/keys/main"
    resilient = ResilientKms(
        "azure-kv", kms, SystemClock(), random.Random(7), RetrySettings(backoff_base_ms=1, rest_ms=0)
    )
    vault.faults = [refusal(429, "Throttled"), refusal(503, "ServiceUnavailable")]
    assert await resilient.unwrap(key, await resilient.wrap(key, KEY, CONTEXT), CONTEXT) == KEY
    assert (await resilient.check(key)).state == "ok"
    vault.disabled.add("main")
    assert (await resilient.check(key)).state == "disabled"


@pytest.mark.parametrize(
    "end", ["", "/keys", "/keys/", "/secrets/main", "/keys/main/v1/wrapkey", "/keys/a b", "/keys/main?x"]
)
def test_an_invalid_key_name_is_refused(kms: AzureKms, vault: KeyVault, end: str) -> None:
    """So is a key of a vault that is not configured, in any spelling."""
    kms.check_key(f"{vault.url}/keys/main")
    kms.check_key(f"{vault.url}/keys/main/0123456789abcdef")
    for key in (
        vault.url + end,
        "https://elsewhere.example/keys/main",
        f"{vault.url}.elsewhere.example/keys/main",
        f"{vault.url}0/keys/main",
        f"{vault.url}@elsewhere.example/keys/main",
    ):
        with pytest.raises(Invalid, match="azure-kv takes"):
            kms.check_key(key)


@pytest.mark.parametrize("wrapped", [b"", b"\1", b"\1\2v1", b"\3\2v1x", b"\1\xffv1x", b"\1\2/.x", b"\1\0x"])
async def test_foreign_wrapped_bytes_are_refused_without_a_request(
    kms: AzureKms, vault: KeyVault, wrapped: bytes
) -> None:
    """They are not used to build a path."""
    with pytest.raises(DecryptionFailed):
        await kms.unwrap(f"{vault.url}/keys/main", wrapped, CONTEXT)
    assert vault.requests == []


async def test_no_key_is_logged_at_debug_level(vault: KeyVault, caplog: pytest.LogCaptureFixture) -> None:
    """Nor is the token."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("azure").setLevel(logging.NOTSET)
    kms = provider(vault)
    key = f"{vault.url}/keys/sym"
    assert await kms.unwrap(key, await kms.wrap(key, KEY, CONTEXT), CONTEXT) == KEY
    logged = "\n".join(record.getMessage() + repr(vars(record)) for record in caplog.records)
    sent = [request.json["value"] for request in vault.requests if request.json]
    assert len(sent) == 2
    for secret in (*sent, KEY.decode(), "the-token"):
        assert secret not in logged
    await kms.close()
