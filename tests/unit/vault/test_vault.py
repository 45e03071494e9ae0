"""The vault creates, uses and reports keys, and no text shows them."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import TYPE_CHECKING

import pytest

from tenantq.errors import (
    DecryptionFailed,
    KmsError,
    KmsUnavailable,
    TenantqError,
)
from tenantq.kms.interface import KeyRef
from tenantq.vault.envelope import key_number
from tenantq.vault.settings import KeyPolicy
from tests.unit.vault.doubles import HOUR_MS, ID, OTHER, POLICY, REF, VaultEnvironment, decrypted, settle

if TYPE_CHECKING:
    from tenantq.runtime.clock import ManualClock


async def test_the_first_call_creates_a_secret_and_a_data_key(env: VaultEnvironment) -> None:
    """Both are stored wrapped in the tenant's context, and verified before they are used."""
    cipher = await env.vault.ready(7, POLICY)
    blob = cipher.encrypt("q", ID, "body", b"hello")
    assert cipher.decrypt("q", ID, "body", blob) == b"hello"
    assert sorted(env.book.keys[7]) == [0, 1]
    assert {key.key for key in env.book.keys[7].values()} == {REF}
    assert env.kms.wraps == env.kms.unwraps == ["0", "1"]


async def test_a_cached_cipher_is_returned_without_waiting(env: VaultEnvironment) -> None:
    """Until a key has to be renewed or the policy changes."""
    assert env.vault.cipher(7, POLICY) is None
    cipher = await env.vault.ready(7, POLICY)
    assert env.vault.cipher(7, POLICY) is cipher
    assert env.vault.cipher(7, KeyPolicy(REF)) is cipher
    assert env.vault.cipher(7, KeyPolicy(OTHER)) is None
    assert env.vault.cipher(8, POLICY) is None


async def test_after_a_restart_everything_decrypts_and_the_same_key_encrypts(env: VaultEnvironment) -> None:
    """No key is created."""
    cipher = await env.vault.ready(7, POLICY)
    blob, digest = cipher.encrypt("q", ID, "body", b"hello"), cipher.digest(b"hello")
    again = env.restarted()
    assert await decrypted(again, blob) == b"hello"
    cipher = await again.ready(7, POLICY)
    assert key_number(cipher.encrypt("q", ID, "body", b"more")) == 1
    assert cipher.digest(b"hello") == digest
    assert env.kms.wraps == ["0", "1"]
    await again.close()


async def test_56_records_of_one_tenant_do_not_decrypt_for_another(env: VaultEnvironment) -> None:
    """Neither with its own keys, nor if its stored keys are replaced with the first tenant's."""
    blob = (await env.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"hello")
    await env.vault.ready(8, POLICY)
    with pytest.raises(DecryptionFailed):
        await decrypted(env.vault, blob, 8)
    env.book.keys[8] = dict(env.book.keys[7])
    with pytest.raises(DecryptionFailed):
        await decrypted(env.restarted(), blob, 8)


async def test_decryption_needs_no_policy(env: VaultEnvironment) -> None:
    """It continues after encryption is switched off, also if the encrypting key is unavailable."""
    blob = (await env.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"hello")
    assert await decrypted(env.restarted(), blob) == b"hello"


async def test_a_record_with_an_unknown_key_does_not_affect_others(env: VaultEnvironment) -> None:
    """Nor does invalid data, or a record that names the secret."""
    cipher = await env.vault.ready(7, POLICY)
    good = cipher.encrypt("q", ID, "body", b"hello")
    strange = good[:1] + (99).to_bytes(4) + good[5:]
    secret = good[:1] + bytes(4) + good[5:]
    blobs = [strange, b"plain", secret, good]
    await cipher.load(blobs)
    for blob in blobs[:3]:
        with pytest.raises(DecryptionFailed):
            cipher.decrypt("q", ID, "body", blob)
    assert cipher.decrypt("q", ID, "body", good) == b"hello"


async def test_decrypting_without_loading_the_key_is_a_typed_error(env: VaultEnvironment) -> None:
    """The key is not guessed."""
    blob = (await env.vault.ready(7, POLICY)).encrypt("q", ID, "body", b"hello")
    reader = env.restarted().reader(7)
    with pytest.raises(KmsUnavailable):
        reader.decrypt("q", ID, "body", blob)
    with pytest.raises(KmsUnavailable):
        reader.encrypt("q", ID, "body", b"x")
    with pytest.raises(KmsUnavailable):
        reader.digest(b"x")


async def test_changed_or_swapped_stored_keys_do_not_unwrap(env: VaultEnvironment) -> None:
    """A wrapped key is bound to its tenant and number."""
    cipher = await env.vault.ready(7, POLICY)
    first = cipher.encrypt("q", ID, "body", b"hello")
    await env.vault.rotate(7)
    second = cipher.encrypt("q", ID, "body", b"hello")
    keys = env.book.keys[7]
    keys[1], keys[2] = (
        type(keys[1])(1, REF, keys[2].wrapped, 0),
        type(keys[2])(2, REF, bytes((keys[2].wrapped[0] ^ 1,)) + keys[2].wrapped[1:], 0),
    )
    for blob in (first, second):
        with pytest.raises(DecryptionFailed):
            await decrypted(env.restarted(), blob)


async def test_health_shows_every_key_and_what_is_in_memory(env: VaultEnvironment) -> None:
    """And a key can be checked."""
    await env.vault.ready(7, POLICY)
    await env.vault.ready(8, KeyPolicy(OTHER))
    health = env.vault.health()
    assert [(key.provider, key.key, key.state) for key in health.keys] == [
        ("local", "main", "ok"),
        ("aws-kms", "alias/other", "ok"),
    ]
    assert (health.tenants, health.cached_keys, health.ok) == (2, 4, True)
    env.kms.error = KmsUnavailable()
    assert not env.vault.health().ok
    assert (await env.vault.check(REF)).state == "unavailable"
    with pytest.raises(KmsError, match="no key management system 'gcp-kms'"):
        await env.vault.check(KeyRef("gcp-kms", "x"))


async def test_a_closed_vault_has_no_keys(env: VaultEnvironment) -> None:
    """Pending calls end with a typed error."""
    cipher = await env.vault.ready(7, POLICY)
    blob = cipher.encrypt("q", ID, "body", b"hello")
    env.kms.gate = asyncio.Event()
    rotation = asyncio.create_task(env.vault.rotate(7))
    await settle()
    await env.vault.close()
    with pytest.raises(KmsUnavailable):
        await rotation
    assert env.vault.health().cached_keys == 0
    for later in (cipher.load([blob]), env.vault.ready(7, POLICY)):
        with pytest.raises(KmsUnavailable):
            await later


async def test_no_text_shows_a_key(env: VaultEnvironment, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """Neither representations nor the log nor errors."""
    caplog.set_level(logging.DEBUG)
    cipher = await env.vault.ready(7, POLICY)
    blob = cipher.encrypt("q", ID, "body", b"marked plaintext")
    await env.vault.rotate(7)
    await env.vault.rewrap(7, OTHER)
    texts = [repr(thing) for thing in (env.vault, cipher, env.vault.health(), env.book.keys, *cipher._held.values())]
    texts += [repr(cipher._keys), repr(env.vault._cache), repr(env.vault._context)]
    errors: list[TenantqError] = []
    for queue, broken in (("other", blob), ("q", blob[:-1])):
        with pytest.raises(TenantqError) as caught:
            cipher.decrypt(queue, ID, "body", broken)
        errors.append(caught.value)
    env.kms.error = env.other.error = KmsUnavailable("out of order")
    clock.advance(2 * HOUR_MS)
    with pytest.raises(TenantqError) as caught:
        await env.vault.ready(7, POLICY)
    errors.append(caught.value)
    texts += [repr(vars(error)) + str(error) + repr(error.__context__) for error in errors]
    texts += [record.getMessage() + repr(vars(record)) for record in caplog.records]
    everything = "\n".join(texts)
    assert len(env.kms.seen) == 3
    for key in env.kms.seen | env.other.seen | {b"marked plaintext"}:
        for form in (key.hex(), repr(key)[2:-1], base64.b64encode(key).decode()):
            assert form not in everything
