"""A real server whose tenant's key is in AWS KMS, simulated by moto behind a proxy that can fail like AWS."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tenantq import AsyncClient
from tenantq.client import Retries
from tenantq.errors import KmsError, Unavailable
from tenantq.kms.settings import AwsSettings, KmsSettings, RetrySettings
from tests.contract.http.real_server import ADMIN, real_server
from tests.unit.kms.http_double import Answer, serving
from tests.unit.kms.test_aws import REGION, AwsFront, id_of, new_key, refusal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tenantq.server import Server

DOWN = Answer(500, {"__type": "KMSInternalException", "message": "down"})
THROTTLED = refusal("ThrottlingException")


@contextmanager
def aws() -> Iterator[AwsFront]:
    """Run moto's server and the proxy in front of it."""
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    port = moto.get_host_and_port()[1]
    front = AwsFront(port)
    front.admin = boto3.client("kms", region_name=REGION, endpoint_url=f"http://127.0.0.1:{port}")
    try:
        with serving(front):
            yield front
    finally:
        front.admin.close()
        moto.stop()
        moto._server.server_close()  # type: ignore[union-attr]  # moto leaves the socket open


def server(data_dir: Path, front: AwsFront, key: str) -> Server:
    """Return a server whose tenants use an AWS key by default."""
    kms = KmsSettings(
        default_key=f"aws-kms:{key}",
        aws=AwsSettings(region=REGION, endpoint_url=f"http://127.0.0.1:{front.port}"),
        retry=RetrySettings(attempts=2, backoff_base_ms=1, backoff_max_ms=1, rest_ms=0),
    )
    return real_server(data_dir, kms=kms)


def client(one: Server) -> AsyncClient:
    """Return an administrator's client without retries."""
    return AsyncClient(f"http://127.0.0.1:{one.port}", token=ADMIN, retries=Retries(count=0))


async def test_57_server_survives_kms_outage_throttling_and_a_disabled_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors are typed, nothing is lost or in plaintext, no attempt is used, and everything recovers."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    data_dir = tmp_path / "data"
    with aws() as front:
        key = new_key(front)
        async with server(data_dir, front, key) as one, client(one) as admin:
            acme = admin.tenant("acme")
            await acme.configure(encryption={"enabled": True})
            await acme.queue("work").add("of great value")
            assert (await acme.rotate_keys()).key == f"aws-kms:{key}"
            await acme.queue("work").add("too")
            assert {one.key for one in (await acme.rewrap_keys()).data_keys} == {f"aws-kms:{key}"}
        async with server(data_dir, front, key) as one, client(one) as admin:  # with nothing in memory
            acme, work = admin.tenant("acme"), admin.tenant("acme").queue("work")
            for fault in (DOWN, THROTTLED):
                for call in (lambda: work.add("x"), lambda: work.poll(5)):
                    front.faults = [fault] * 20
                    with pytest.raises(Unavailable) as refused:
                        await call()
                    assert refused.value.retry_after_ms >= 1_000
            front.faults = []
            front.admin.disable_key(KeyId=id_of(key))
            for call in (lambda: work.add("x"), lambda: work.poll(5)):
                with pytest.raises(KmsError):
                    await call()
            assert (await acme.encryption()).key_state == "disabled"
            front.admin.enable_key(KeyId=id_of(key))
            stats = await work.stats()
            assert (stats.ready, stats.in_flight, stats.added_total) == (2, 0, 2)
            got = await work.poll(5)
            assert [(one.text, one.attempt) for one in got] == [("of great value", 1), ("too", 1)]
