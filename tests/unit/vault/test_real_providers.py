"""The vault on real providers: a keyring file, and AWS KMS simulated by moto."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tenantq.errors import Erased, KeyDisabled
from tenantq.kms.interface import KeyRef
from tenantq.kms.keyring import KeyringFile, Unlock
from tenantq.kms.providers import open_kms
from tenantq.kms.settings import AwsSettings, KmsSettings, LocalSettings
from tenantq.runtime.clock import SystemClock
from tenantq.vault.settings import KeyPolicy
from tenantq.vault.vault import Vault
from tests.unit.vault.doubles import ID, MemoryBook, decrypted

if TYPE_CHECKING:
    from pathlib import Path

LOCAL = KeyPolicy(KeyRef("local", "main"))


@pytest.fixture
def ring(tmp_path: Path) -> KeyringFile:
    """Create a keyring with one key."""
    (tmp_path / "master").write_bytes(bytes(32))
    (tmp_path / "master").chmod(0o600)
    ring = KeyringFile(tmp_path / "keyring.json", Unlock("master_key", bytes(32)))
    ring.create()
    ring.add_key("main", 0)
    return ring


def local_settings(ring: KeyringFile) -> LocalSettings:
    """Return the settings for that keyring."""
    return LocalSettings(keyring=str(ring.path), master_key_file=str(ring.path.with_name("master")))


async def test_keys_move_from_a_keyring_to_aws_and_are_shredded(
    ring: KeyringFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records stay readable after the keyring's key is destroyed, until the tenant is shredded."""
    for name, value in {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    admin = boto3.client("kms", region_name="eu-central-1", endpoint_url=endpoint)
    aws = KeyRef("aws-kms", admin.create_key()["KeyMetadata"]["Arn"])
    admin.close()
    clock = SystemClock()
    kms = open_kms(
        KmsSettings(local=local_settings(ring), aws=AwsSettings(endpoint_url=endpoint)), clock, random.Random(7)
    )
    book = MemoryBook()
    vault = Vault(book, kms, clock)
    try:
        cipher = await vault.ready(7, LOCAL)
        blobs = [cipher.encrypt("q", ID, "body", b"first")]
        ring.rotate_key("main", 1)
        await vault.rotate(7)
        blobs.append(cipher.encrypt("q", ID, "body", b"second"))
        assert await vault.rewrap(7, aws) == 3
        ring.remove_key("main")
        again = Vault(book, kms, clock)
        assert [await decrypted(again, blob) for blob in blobs] == [b"first", b"second"]
        assert (await again.ready(7, KeyPolicy(aws))).digest(b"x") == cipher.digest(b"x")
        assert {health.state for health in again.health().keys} == {"ok"}
        assert (await again.check(LOCAL.key)).state == "disabled"
        assert await again.shred(7) == 3
        with pytest.raises(Erased):
            await decrypted(again, blobs[0])
        await again.close()
    finally:
        await vault.close()
        for provider in kms.values():
            await provider.close()
        server.stop()
        server._server.server_close()  # type: ignore[union-attr]  # moto leaves the socket open


async def test_a_key_disabled_in_the_keyring_stops_new_processes_at_once(ring: KeyringFile) -> None:
    """Nothing is created or decrypted until it is enabled again."""
    clock = SystemClock()
    kms, fresh = (open_kms(KmsSettings(local=local_settings(ring)), clock, random.Random(7)) for _ in range(2))
    book = MemoryBook()
    vault = Vault(book, kms, clock, os.urandom)
    blob = (await vault.ready(7, LOCAL)).encrypt("q", ID, "body", b"hello")
    ring.set_enabled("main", enabled=False)
    again = Vault(book, fresh, clock)
    with pytest.raises(KeyDisabled):
        await decrypted(again, blob)
    with pytest.raises(KeyDisabled):
        await again.ready(8, LOCAL)
    assert not again.health().ok
    assert await decrypted(vault, blob) == b"hello"
    ring.set_enabled("main", enabled=True)
    third = Vault(book, kms, clock)
    assert await decrypted(third, blob) == b"hello"
    for each in (vault, again, third):
        await each.close()
    for opened_kms in (kms, fresh):
        await opened_kms["local"].close()
