"""The provider gcp-kms: Google's own client, over HTTP, against a double that checks every call and answers as Cloud KMS does."""

from __future__ import annotations

import base64
import json
import logging
import os
import random
import re
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.auth.exceptions import RefreshError, TransportError
from google.oauth2.credentials import Credentials

from tenantq.errors import DecryptionFailed, Invalid, KeyDisabled, KmsDenied, KmsError, KmsUnavailable
from tenantq.kms.gcp import GcpKms
from tenantq.kms.interface import context_bytes
from tenantq.kms.resilient import ResilientKms
from tenantq.kms.settings import GcpSettings, RetrySettings
from tenantq.runtime.clock import SystemClock
from tests.unit.kms.http_double import Answer, HttpDouble, RecordedRequest, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

CONTEXT = {"tenantq": "data-key", "tenant": "7", "number": "1"}
KEY = b"0123456789abcdef0123456789ABCDEF"
NAME = "projects/acme-1/locations/europe-west3/keyRings/queues/cryptoKeys/main"
OTHER = NAME.replace("main", "other")


def refusal(status: int, name: str) -> Answer:
    """Return an error in the format of Google."""
    return Answer(status, {"error": {"code": status, "message": "of projects/acme-1: no", "status": name}})


def checksum(data: bytes) -> str:
    """Return the CRC-32C, computed bit by bit, as text, which is how JSON represents an int64."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return str(crc ^ 0xFFFFFFFF)


class CloudKms(HttpDouble):
    """Keys with versions. Ciphertext begins with the version number."""

    def __init__(self) -> None:
        super().__init__(self.serve)
        self.versions: dict[str, list[AESGCM]] = {NAME: [AESGCM(os.urandom(32))], OTHER: [AESGCM(os.urandom(32))]}
        self.disabled: set[tuple[str, int]] = set()
        self.garble = ""  # a field of the answer to corrupt

    def rotate(self, name: str) -> None:
        """Give a key a new primary version."""
        self.versions[name].append(AESGCM(os.urandom(32)))

    def serve(self, request: RecordedRequest) -> Answer:
        """Check the call as strictly as the real service, and execute it."""
        found = re.fullmatch(r"/v1/(projects/.+):(encrypt|decrypt)", request.path)
        assert found is not None, request.path
        assert request.method == "POST"
        assert request.headers["content-type"] == "application/json"
        if request.headers.get("authorization") != "Bearer the-token":
            return refusal(401, "UNAUTHENTICATED")
        name, operation = found[1], found[2]
        if name not in self.versions:
            return refusal(404, "NOT_FOUND")
        given = {field: base64.b64decode(text) for field, text in request.json.items() if not field.endswith("Crc32c")}
        for field, value in given.items():
            assert request.json[field + "Crc32c"] == checksum(value), field
        aad = given["additionalAuthenticatedData"]
        assert 0 < len(aad) <= 64 * 1_024
        if operation == "encrypt":
            assert set(given) == {"plaintext", "additionalAuthenticatedData"}
            return self._encrypt(name, given["plaintext"], aad)
        assert set(given) == {"ciphertext", "additionalAuthenticatedData"}
        return self._decrypt(name, given["ciphertext"], aad)

    def _encrypt(self, name: str, plaintext: bytes, aad: bytes) -> Answer:
        version = len(self.versions[name])
        if (name, version) in self.disabled:
            return refusal(400, "FAILED_PRECONDITION")
        nonce = os.urandom(12)
        ciphertext = bytes([version]) + nonce + self.versions[name][version - 1].encrypt(nonce, plaintext, aad)
        return self._answer(
            {
                "name": f"{name}/cryptoKeyVersions/{version}",
                "ciphertext": base64.b64encode(ciphertext).decode(),
                "ciphertextCrc32c": checksum(ciphertext),
                "verifiedPlaintextCrc32c": True,
                "verifiedAdditionalAuthenticatedDataCrc32c": True,
                "protectionLevel": "SOFTWARE",
            }
        )

    def _decrypt(self, name: str, ciphertext: bytes, aad: bytes) -> Answer:
        version = ciphertext[0]
        if (name, version) in self.disabled:
            return refusal(400, "FAILED_PRECONDITION")
        try:
            plaintext = self.versions[name][version - 1].decrypt(ciphertext[1:13], ciphertext[13:], aad)
        except (InvalidTag, IndexError):
            return refusal(400, "INVALID_ARGUMENT")
        return self._answer(
            {
                "plaintext": base64.b64encode(plaintext).decode(),
                "plaintextCrc32c": checksum(plaintext),
                "usedPrimary": version == len(self.versions[name]),
                "protectionLevel": "SOFTWARE",
            }
        )

    def _answer(self, body: dict[str, Any]) -> Answer:
        if self.garble:
            value = body[self.garble]
            body[self.garble] = base64.b64encode(b"other bytes").decode() if isinstance(value, str) else not value
        return Answer(200, body)


@pytest.fixture
def cloud() -> Iterator[CloudKms]:
    """Serve the double."""
    with serving(CloudKms()) as cloud:
        assert isinstance(cloud, CloudKms)
        yield cloud


def provider(cloud: CloudKms, token: str = "the-token", call_ms: int = 5_000) -> GcpKms:  # noqa: S107  # of the double
    """Open the provider with a token that needs no server."""
    credentials = Credentials(token)  # type: ignore[no-untyped-call]  # of Google's, without types
    return GcpKms(GcpSettings(endpoint=f"http://127.0.0.1:{cloud.port}"), call_ms=call_ms, credentials=credentials)


@pytest.fixture
async def kms(cloud: CloudKms) -> AsyncIterator[GcpKms]:
    """Open the provider."""
    kms = provider(cloud)
    yield kms
    await kms.close()


async def test_a_wrapped_key_unwraps_only_in_the_same_context(kms: GcpKms, cloud: CloudKms) -> None:
    """The double checks path, checksums, token and context of each call."""
    wrapped = await kms.wrap(NAME, KEY, CONTEXT)
    assert await kms.unwrap(NAME, wrapped, CONTEXT) == KEY
    assert [request.path.rpartition(":")[2] for request in cloud.requests] == ["encrypt", "decrypt"]
    aad = base64.b64decode(cloud.requests[0].json["additionalAuthenticatedData"])
    assert aad == context_bytes(CONTEXT)
    for context in ({"tenant": "7"}, {**CONTEXT, "tenant": "8"}):
        with pytest.raises(DecryptionFailed):
            await kms.unwrap(NAME, wrapped, context)
    with pytest.raises(DecryptionFailed):
        await kms.unwrap(OTHER, wrapped, CONTEXT)
    with pytest.raises(DecryptionFailed):
        await kms.unwrap(NAME, wrapped[:-1] + bytes([wrapped[-1] ^ 1]), CONTEXT)


async def test_a_rotated_key_wraps_with_the_new_version_and_unwraps_with_the_old(kms: GcpKms, cloud: CloudKms) -> None:
    """The key's name is enough."""
    old = await kms.wrap(NAME, KEY, CONTEXT)
    cloud.rotate(NAME)
    new = await kms.wrap(NAME, KEY, CONTEXT)
    assert (old[0], new[0]) == (1, 2)
    for wrapped in (old, new):
        assert await kms.unwrap(NAME, wrapped, CONTEXT) == KEY


async def test_a_disabled_destroyed_or_missing_key_is_refused(kms: GcpKms, cloud: CloudKms) -> None:
    """For wrapping and unwrapping. An enabled key works again."""
    wrapped = await kms.wrap(NAME, KEY, CONTEXT)
    cloud.disabled.add((NAME, 1))
    for call in (kms.wrap(NAME, KEY, CONTEXT), kms.unwrap(NAME, wrapped, CONTEXT)):
        with pytest.raises(KeyDisabled, match="FAILED_PRECONDITION"):
            await call
    cloud.disabled.clear()
    assert await kms.unwrap(NAME, wrapped, CONTEXT) == KEY
    with pytest.raises(KeyDisabled, match="NOT_FOUND"):
        await kms.wrap(NAME + "-gone", KEY, CONTEXT)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (refusal(403, "PERMISSION_DENIED"), KmsDenied),
        (refusal(429, "RESOURCE_EXHAUSTED"), KmsUnavailable),
        (refusal(503, "UNAVAILABLE"), KmsUnavailable),
        (refusal(500, "INTERNAL"), KmsUnavailable),
        (refusal(504, "DEADLINE_EXCEEDED"), KmsUnavailable),
        (Answer(502, b"<html>bad gateway</html>", {"Content-Type": "text/html"}), KmsUnavailable),
        (refusal(400, "INVALID_ARGUMENT"), KmsError),
        ("reset", KmsUnavailable),
    ],
)
async def test_every_refusal_is_a_typed_error(
    kms: GcpKms, cloud: CloudKms, fault: Answer | str, kind: type[Exception]
) -> None:
    """Google's client does not retry, and project details in its error are left out."""
    cloud.faults = [fault]
    with pytest.raises(kind) as caught:
        await kms.wrap(NAME, KEY, CONTEXT)
    assert type(caught.value) is kind
    assert len(cloud.requests) == 1
    assert "acme" not in str(caught.value)
    assert caught.value.__suppress_context__


async def test_the_retry_time_is_taken_from_the_answer(kms: GcpKms, cloud: CloudKms) -> None:
    """If it has one."""
    cloud.faults = [refusal(429, "RESOURCE_EXHAUSTED")._replace(headers={"Retry-After": "7"})]
    with pytest.raises(KmsUnavailable) as caught:
        await kms.wrap(NAME, KEY, CONTEXT)
    assert caught.value.retry_after_ms == 7_000


async def test_refused_credentials_are_reported(cloud: CloudKms) -> None:
    """Google's client tries to refresh them and fails."""
    kms = provider(cloud, "another-token")
    with pytest.raises(KmsDenied):
        await kms.wrap(NAME, KEY, CONTEXT)
    await kms.close()


@pytest.mark.parametrize(("error", "kind"), [(RefreshError, KmsDenied), (TransportError, KmsUnavailable)])
async def test_an_unavailable_token_is_a_typed_error(
    cloud: CloudKms, monkeypatch: pytest.MonkeyPatch, error: type[Exception], kind: type[Exception]
) -> None:
    """Refused, or its server is unreachable."""

    def refresh(*_: object) -> None:
        raise error("the private key is xyz")

    monkeypatch.setattr(Credentials, "refresh", refresh)
    kms = provider(cloud, "")
    with pytest.raises(kind) as caught:
        await kms.wrap(NAME, KEY, CONTEXT)
    assert "xyz" not in str(caught.value)
    await kms.close()


@pytest.mark.parametrize(
    ("field", "operation"),
    [
        ("ciphertext", "wrap"),
        ("verifiedPlaintextCrc32c", "wrap"),
        ("verifiedAdditionalAuthenticatedDataCrc32c", "wrap"),
        ("plaintext", "unwrap"),
    ],
)
async def test_data_corrupted_in_transit_is_detected(kms: GcpKms, cloud: CloudKms, field: str, operation: str) -> None:
    """By its checksum; a retry may help."""
    wrapped = await kms.wrap(NAME, KEY, CONTEXT)
    cloud.garble = field
    call = kms.wrap(NAME, KEY, CONTEXT) if operation == "wrap" else kms.unwrap(NAME, wrapped, CONTEXT)
    with pytest.raises(KmsUnavailable, match="checksum"):
        await call


async def test_timeouts_and_unreachable_servers_are_outages(cloud: CloudKms) -> None:
    """The client itself times out."""
    kms = provider(cloud, call_ms=150)
    cloud.faults = ["hang"]
    with pytest.raises(KmsUnavailable, match="Timeout"):
        await kms.wrap(NAME, KEY, CONTEXT)
    await kms.close()
    credentials = Credentials("the-token")  # type: ignore[no-untyped-call]  # of Google's, without types
    nowhere = GcpKms(GcpSettings(endpoint="http://127.0.0.1:1"), credentials=credentials)
    with pytest.raises(KmsUnavailable, match="ConnectionError"):
        await nowhere.wrap(NAME, KEY, CONTEXT)
    await nowhere.close()


async def test_throttling_is_retried_and_health_is_reported(kms: GcpKms, cloud: CloudKms) -> None:
    """With the resilient wrapper, a throttled call and an outage are followed by a successful call, and a disabled key is visible."""
    resilient = ResilientKms(
        "gcp-kms", kms, SystemClock(), random.Random(7), RetrySettings(backoff_base_ms=1, rest_ms=0)
    )
    cloud.faults = [refusal(429, "RESOURCE_EXHAUSTED"), refusal(503, "UNAVAILABLE")]
    assert await resilient.unwrap(NAME, await resilient.wrap(NAME, KEY, CONTEXT), CONTEXT) == KEY
    assert len(cloud.requests) == 4
    assert (await resilient.check(NAME)).state == "ok"
    cloud.disabled.add((NAME, 1))
    assert (await resilient.check(NAME)).state == "disabled"


@pytest.mark.parametrize("name", ["", "main", NAME + "/cryptoKeyVersions/1", NAME + "?x", "projects/../x", NAME + "\n"])
def test_an_invalid_key_name_is_refused(kms: GcpKms, name: str) -> None:
    """So is one with a version, which Cloud KMS chooses."""
    kms.check_key(NAME)
    with pytest.raises(Invalid, match="gcp-kms takes"):
        kms.check_key(name)


async def test_no_key_is_logged_at_debug_level(cloud: CloudKms, caplog: pytest.LogCaptureFixture) -> None:
    """Google's client would log requests and answers there, so its logging is disabled."""
    caplog.set_level(logging.DEBUG)
    for name in ("google", "google.cloud", "google.cloud.kms", "google.cloud.kms_v1"):
        logging.getLogger(name).setLevel(logging.NOTSET)
        logging.getLogger(name).propagate = True
    kms = provider(cloud)
    assert await kms.unwrap(NAME, await kms.wrap(NAME, KEY, CONTEXT), CONTEXT) == KEY
    logged = "\n".join(record.getMessage() + repr(vars(record)) for record in caplog.records)
    assert base64.b64encode(KEY).decode()[:20] not in logged
    assert KEY.decode() not in logged
    await kms.close()


def service_account() -> dict[str, str]:
    """Return service account credentials in Google's format, with a generated key."""
    private = rsa.generate_private_key(65_537, 2_048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "client_email": "tenantq@acme-1.example",
        "private_key": private.decode(),
        "token_uri": "https://127.0.0.1:1/token",
    }


async def test_a_credentials_file_is_for_its_owner_only(tmp_path: Path) -> None:
    """It is read, or refused with what to do, and never shown."""
    file = tmp_path / "account.json"
    settings = GcpSettings(credentials_file=str(file), endpoint="http://127.0.0.1:1")
    with pytest.raises(Invalid, match="No such file"):
        GcpKms(settings)
    file.write_text(json.dumps(service_account()))
    file.chmod(0o644)
    with pytest.raises(Invalid, match="0644"):
        GcpKms(settings)
    file.chmod(0o600)
    await GcpKms(settings).close()
    for content in ('{"type": "service_account", "private_key": "xyz"}', "xyz", "[5]", '"xyz"'):
        file.write_text(content)
        with pytest.raises(Invalid, match="not a service account key file") as caught:
            GcpKms(settings)
        assert "xyz" not in str(caught.value)


def test_without_credentials_the_provider_does_not_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error names the setting."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(Invalid, match=r"kms\.gcp\.credentials_file"):
        GcpKms(GcpSettings())
