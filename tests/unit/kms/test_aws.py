"""The provider aws-kms: boto3 against moto's server over HTTP.

moto encrypts, decrypts and compares contexts, but it lets disabled keys and keys pending deletion continue to work. So a small server stands
in front of it: it asks moto for the key's state and refuses as AWS documents it, and it throttles and fails when told to.
"""

from __future__ import annotations

import http.client
import logging
import random
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.loaders import create_loader
from moto.server import ThreadedMotoServer

from tenantq.errors import DecryptionFailed, Invalid, KeyDisabled, KmsDenied, KmsError, KmsUnavailable
from tenantq.kms.aws import AwsKms
from tenantq.kms.resilient import ResilientKms
from tenantq.kms.settings import AwsSettings, RetrySettings
from tenantq.runtime.clock import SystemClock
from tests.unit.kms.http_double import Answer, HttpDouble, RecordedRequest, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

CONTEXT = {"tenantq": "data-key", "tenant": "7", "number": "1"}
KEY = b"0123456789abcdef0123456789ABCDEF"
REGION = "eu-central-1"


def refusal(code: str, status: int = 400) -> Answer:
    """Return an error in the format of AWS."""
    return Answer(status, {"__type": code, "message": "arn:aws:iam::123456789012:user/somebody may not"})


class AwsFront(HttpDouble):
    """A proxy in front of moto that refuses what AWS would refuse."""

    def __init__(self, moto_port: int) -> None:
        super().__init__(self.answer_request)
        self.moto_port = moto_port
        self.admin: Any = None

    def answer_request(self, request: RecordedRequest) -> Answer:
        """Refuse if the key is not enabled; otherwise forward to moto."""
        operation = request.headers["x-amz-target"].removeprefix("TrentService.")
        if operation in {"Encrypt", "Decrypt"}:
            try:
                state = self.admin.describe_key(KeyId=request.json["KeyId"])["KeyMetadata"]["KeyState"]
            except self.admin.exceptions.NotFoundException:
                state = "unknown to this region"
            if state == "Disabled":
                return refusal("DisabledException")
            if state == "PendingDeletion":
                return refusal("KMSInvalidStateException")
        connection = http.client.HTTPConnection("127.0.0.1", self.moto_port, timeout=10)
        headers = {
            name: value for name, value in request.headers.items() if name not in {"connection", "content-length"}
        }
        connection.request(request.method, request.path, request.body, headers)
        response = connection.getresponse()
        content = response.read()
        kind = response.headers["Content-Type"]
        connection.close()
        return Answer(response.status, content, {"Content-Type": kind})


@pytest.fixture(scope="module")
def moto() -> Iterator[int]:
    """Run moto's server and return its port."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()
    server._server.server_close()  # type: ignore[union-attr]  # moto leaves the socket open


LOADER = create_loader()


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give boto3 test credentials only; the AWS service descriptions are read once for all tests."""
    monkeypatch.setattr("botocore.session.create_loader", lambda _: LOADER)
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nowhere/config",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere/credentials",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def admin(moto: int) -> Iterator[Any]:
    """Return a client that talks to moto directly."""
    known = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
    client = boto3.client("kms", region_name=REGION, endpoint_url=f"http://127.0.0.1:{moto}", **known)
    yield client
    client.close()


@pytest.fixture
def front(moto: int, admin: Any, credentials: None) -> Iterator[AwsFront]:
    """Run the proxy in front of moto."""
    front = AwsFront(moto)
    front.admin = admin
    with serving(front):
        yield front


@pytest.fixture
async def kms(front: AwsFront) -> AsyncIterator[AwsKms]:
    """Open the provider."""
    kms = AwsKms(AwsSettings(region=REGION, endpoint_url=f"http://127.0.0.1:{front.port}"), call_ms=5_000)
    yield kms
    await kms.close()


def new_key(front: AwsFront, **facts: str) -> str:
    """Create a key in moto and return its ARN."""
    return str(front.admin.create_key(**facts)["KeyMetadata"]["Arn"])


def id_of(arn: str) -> str:
    """Return the ID of a key, the only name that moto's administration accepts."""
    return arn.rpartition("/")[2]


async def test_a_wrapped_key_unwraps_only_in_the_same_context(kms: AwsKms, front: AwsFront) -> None:
    """Moto authenticates the encryption context, as AWS does."""
    key = new_key(front)
    wrapped = await kms.wrap(key, KEY, CONTEXT)
    assert KEY not in wrapped
    assert await kms.unwrap(key, wrapped, CONTEXT) == KEY
    for context in ({}, {**CONTEXT, "tenant": "8"}):
        with pytest.raises(DecryptionFailed):
            await kms.unwrap(key, wrapped, context)
    with pytest.raises(DecryptionFailed):
        await kms.unwrap(key, wrapped[:-1] + bytes([wrapped[-1] ^ 1]), CONTEXT)


async def test_the_calls_are_encrypt_and_decrypt_with_key_and_context(kms: AwsKms, front: AwsFront) -> None:
    """Decrypt names the key, so that wrapped bytes cannot choose another one; every call is signed for its region."""
    key = new_key(front)
    await kms.unwrap(key, await kms.wrap(key, KEY, CONTEXT), CONTEXT)
    encrypt, decrypt = front.requests
    assert encrypt.headers["x-amz-target"] == "TrentService.Encrypt"
    assert set(encrypt.json) == {"KeyId", "Plaintext", "EncryptionContext"}
    assert decrypt.headers["x-amz-target"] == "TrentService.Decrypt"
    assert set(decrypt.json) == {"KeyId", "CiphertextBlob", "EncryptionContext"}
    for request in (encrypt, decrypt):
        assert request.json["KeyId"] == key
        assert request.json["EncryptionContext"] == CONTEXT
        assert f"/{REGION}/kms/aws4_request" in request.headers["authorization"]


async def test_a_key_is_named_by_id_arn_or_alias(kms: AwsKms, front: AwsFront) -> None:
    """All three name the same key."""
    arn = new_key(front)
    front.admin.create_alias(AliasName="alias/tenantq-test", TargetKeyId=arn)
    names = [arn, arn.rpartition("/")[2], "alias/tenantq-test", arn.rpartition(":")[0] + ":alias/tenantq-test"]
    for name in names:
        kms.check_key(name)
    wrapped = await kms.wrap(names[2], KEY, CONTEXT)
    for name in names:
        assert await kms.unwrap(name, wrapped, CONTEXT) == KEY


async def test_the_region_of_an_arn_is_used(kms: AwsKms, front: AwsFront) -> None:
    """A key in another region is requested there."""
    there = boto3.client("kms", region_name="us-east-1", endpoint_url=f"http://127.0.0.1:{front.moto_port}")
    key = there.create_key()["KeyMetadata"]["Arn"]
    assert await kms.unwrap(key, await kms.wrap(key, KEY, CONTEXT), CONTEXT) == KEY
    assert "/us-east-1/kms/" in front.requests[-1].headers["authorization"]
    there.close()


@pytest.mark.parametrize(
    "name", ["", "a b", "arn:aws:kms:eu:1:key/x", "arn:aws:s3:::x", "http://127.0.0.1/", "x" * 300]
)
def test_an_invalid_key_name_is_refused(kms: AwsKms, name: str) -> None:
    """Without a request."""
    with pytest.raises(Invalid, match="aws-kms takes"):
        kms.check_key(name)


async def test_a_rotated_key_unwraps_older_data(kms: AwsKms, front: AwsFront) -> None:
    """AWS keeps the older key material under the same name."""
    key = new_key(front)
    wrapped = await kms.wrap(key, KEY, CONTEXT)
    front.admin.rotate_key_on_demand(KeyId=id_of(key))
    assert await kms.unwrap(key, wrapped, CONTEXT) == KEY


async def test_a_disabled_key_is_refused_until_it_is_enabled(kms: AwsKms, front: AwsFront) -> None:
    """For wrapping and unwrapping."""
    key = new_key(front)
    wrapped = await kms.wrap(key, KEY, CONTEXT)
    front.admin.disable_key(KeyId=id_of(key))
    for call in (kms.wrap(key, KEY, CONTEXT), kms.unwrap(key, wrapped, CONTEXT)):
        with pytest.raises(KeyDisabled, match="DisabledException"):
            await call
    front.admin.enable_key(KeyId=id_of(key))
    assert await kms.unwrap(key, wrapped, CONTEXT) == KEY


async def test_a_deleted_key_is_refused(kms: AwsKms, front: AwsFront) -> None:
    """From the time its deletion is scheduled."""
    key = new_key(front)
    wrapped = await kms.wrap(key, KEY, CONTEXT)
    front.admin.schedule_key_deletion(KeyId=id_of(key), PendingWindowInDays=7)
    with pytest.raises(KeyDisabled, match="KMSInvalidStateException"):
        await kms.unwrap(key, wrapped, CONTEXT)
    gone = key.rpartition("/")[0] + "/11111111-2222-3333-4444-555555555555"
    with pytest.raises(KeyDisabled, match="NotFoundException"):
        await kms.wrap(gone, KEY, CONTEXT)


async def test_wrapped_bytes_of_another_key_do_not_unwrap(kms: AwsKms, front: AwsFront) -> None:
    """Moto answers AccessDenied where AWS answers IncorrectKey; neither returns the plaintext."""
    one, two = new_key(front), new_key(front)
    wrapped = await kms.wrap(one, KEY, CONTEXT)
    with pytest.raises((DecryptionFailed, KmsDenied)):
        await kms.unwrap(two, wrapped, CONTEXT)
    front.faults = [refusal("IncorrectKeyException")]
    with pytest.raises(DecryptionFailed):
        await kms.unwrap(two, wrapped, CONTEXT)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (refusal("AccessDeniedException"), KmsDenied),
        (refusal("UnrecognizedClientException"), KmsDenied),
        (refusal("ExpiredTokenException"), KmsDenied),
        (refusal("ThrottlingException"), KmsUnavailable),
        (refusal("LimitExceededException"), KmsUnavailable),
        (refusal("KMSInternalException", 500), KmsUnavailable),
        (refusal("DependencyTimeoutException", 500), KmsUnavailable),
        (refusal("KeyUnavailableException", 500), KmsUnavailable),
        (Answer(503, b"<html>busy</html>", {"Content-Type": "text/html"}), KmsUnavailable),
        (Answer(429, b""), KmsUnavailable),
        (refusal("InvalidKeyUsageException"), KmsError),
        (refusal("ValidationException"), KmsError),
        ("reset", KmsUnavailable),
    ],
)
async def test_every_refusal_is_a_typed_error(
    kms: AwsKms, front: AwsFront, fault: Answer | str, kind: type[Exception]
) -> None:
    """boto3 does not retry, and account details in the AWS error are left out."""
    key = new_key(front)
    front.faults = [fault]
    with pytest.raises(kind) as caught:
        await kms.wrap(key, KEY, CONTEXT)
    assert type(caught.value) is kind
    assert len(front.requests) == 1
    assert "123456789012" not in str(caught.value)
    assert caught.value.__suppress_context__


async def test_a_timeout_is_an_outage(front: AwsFront) -> None:
    """The client itself times out, so no thread stays busy forever."""
    kms = AwsKms(AwsSettings(region=REGION, endpoint_url=f"http://127.0.0.1:{front.port}"), call_ms=150)
    front.faults = ["hang"]
    with pytest.raises(KmsUnavailable, match="ReadTimeoutError"):
        await kms.wrap("alias/any", KEY, CONTEXT)
    await kms.close()


async def test_an_unreachable_endpoint_is_an_outage(credentials: None) -> None:
    """Nothing listens on local port 1."""
    kms = AwsKms(AwsSettings(region=REGION, endpoint_url="http://127.0.0.1:1"))
    with pytest.raises(KmsUnavailable, match="EndpointConnectionError"):
        await kms.wrap("alias/any", KEY, CONTEXT)
    await kms.close()


async def test_missing_credentials_region_and_profile_are_reported(
    front: AwsFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each error says what to do."""
    endpoint = f"http://127.0.0.1:{front.port}"
    without_region = AwsKms(AwsSettings(endpoint_url=endpoint))
    with pytest.raises(KmsError, match=r"kms\.aws\.region"):
        await without_region.wrap("alias/any", KEY, CONTEXT)
    with pytest.raises(Invalid, match="nobody"):
        AwsKms(AwsSettings(profile="nobody"))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    without_credentials = AwsKms(AwsSettings(region=REGION, endpoint_url=endpoint))
    with pytest.raises(KmsDenied, match="no AWS credentials"):
        await without_credentials.wrap("alias/any", KEY, CONTEXT)
    assert front.requests == []
    await without_region.close()
    await without_credentials.close()


async def test_throttling_is_retried_and_health_is_reported(kms: AwsKms, front: AwsFront) -> None:
    """With the resilient wrapper, two throttled calls are followed by a successful one, and a disabled key is visible."""
    key = new_key(front)
    resilient = ResilientKms(
        "aws-kms", kms, SystemClock(), random.Random(7), RetrySettings(backoff_base_ms=1, rest_ms=0)
    )
    front.faults = [refusal("ThrottlingException"), refusal("KMSInternalException", 500)]
    assert await resilient.unwrap(key, await resilient.wrap(key, KEY, CONTEXT), CONTEXT) == KEY
    assert len(front.requests) == 4
    assert (await resilient.check(key)).state == "ok"
    front.admin.disable_key(KeyId=id_of(key))
    health = await resilient.check(key)
    assert (health.state, health.failures) == ("disabled", 1)
    assert health.last_ok_at is not None


async def test_no_key_is_logged_at_debug_level(
    front: AwsFront, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 would log requests and answers there, so its logging is disabled."""
    caplog.set_level(logging.DEBUG)
    for name in ("boto3", "botocore"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    kms = AwsKms(AwsSettings(region=REGION, endpoint_url=f"http://127.0.0.1:{front.port}"))
    key = new_key(front)
    assert await kms.unwrap(key, await kms.wrap(key, KEY, CONTEXT), CONTEXT) == KEY
    logged = "\n".join(record.getMessage() + repr(vars(record)) for record in caplog.records)
    assert "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0" not in logged
    assert KEY.decode() not in logged
    await kms.close()
