"""The self-check of keys on a real keyring: a disabled, removed or unreachable key is found and named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.domain.plans import Plan, PlanSettings
from tenantq.errors import KeyDisabled, KmsUnavailable
from tenantq.service.self_checks.check import CheckResult
from tenantq.service.self_checks.key_health import KeyHealthCheck
from tenantq.service.service import Service

if TYPE_CHECKING:
    from tests.contract.encryption.harness import EncryptedHarness


async def two_tenants(harness: EncryptedHarness) -> KeyHealthCheck:
    """Create two encrypted tenants with messages; return the check as a server runs it."""
    for name in ("acme", "globex"):
        await harness.add(await harness.encrypted(name), "work", "a", "b")
    return KeyHealthCheck(harness.encryption.keys_in_use, harness.encryption.try_key)


async def test_check_passes_without_encrypted_tenants(harness: EncryptedHarness) -> None:
    """There is nothing to check."""
    check = KeyHealthCheck(harness.encryption.keys_in_use, harness.encryption.try_key)
    assert await check.run() == CheckResult(ok=True, text="no tenant is encrypted here")


async def test_default_plan_encrypts_new_tenants(harness: EncryptedHarness) -> None:
    """The key of each is created with it, although the call does not mention encryption."""
    plans = PlanSettings(default="safe", custom={"safe": Plan(encrypted=True)})
    harness.service = Service(harness.shard, harness.admission, harness.clock, harness.encryption, plans=plans)
    key = await harness.key(await harness.tenant("acme"))
    await harness.add(key, "work", "secret")
    assert [one.body for one in await harness.take(key, "work")] == [b"secret"]
    assert len(set(harness.encryption.keys_in_use())) == 1


@pytest.mark.parametrize("trouble", ["disabled", "taken away"])
async def test_broken_key_is_named(harness: EncryptedHarness, trouble: str) -> None:
    """No other key is named."""
    check = await two_tenants(harness)
    assert await check.run() == CheckResult(ok=True, text="2 of 2 keys wrap and unwrap")
    first, second = sorted(set(harness.encryption.keys_in_use()))
    if trouble == "disabled":
        harness.ring.set_enabled(second.key, enabled=False)
    else:
        harness.ring.remove_key(second.key)
    harness.clock.advance(10_000)
    result = await check.run()
    assert not result.ok
    assert result.text.startswith(f"{second} is disabled")
    assert str(first) not in result.text


async def test_kms_outage_is_found_and_ends(harness: EncryptedHarness) -> None:
    """All keys are named; when it is over, the check passes again."""
    check = await two_tenants(harness)
    harness.provider.failure = KmsUnavailable("the keyring is on holiday")
    result = await check.run()
    assert not result.ok
    assert result.text.count("unavailable") == 2
    harness.provider.failure = None
    harness.clock.advance(60_000)
    assert (await check.run()).ok


async def test_keys_are_checked_in_turns(harness: EncryptedHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run checks a limited number; a broken key stays reported until it is checked again."""
    monkeypatch.setattr("tenantq.service.self_checks.key_health.KEYS_MAX", 1)
    check = await two_tenants(harness)
    harness.ring.set_enabled(max(set(harness.encryption.keys_in_use())).key, enabled=False)
    harness.clock.advance(10_000)
    assert [(await check.run()).ok for _ in range(4)] == [True, False, False, False]
    harness.ring.set_enabled(max(set(harness.encryption.keys_in_use())).key, enabled=True)
    harness.clock.advance(10_000)
    assert [(await check.run()).ok for _ in range(2)] == [False, True]


async def test_refused_setting_does_not_count_as_a_failing_key(harness: EncryptedHarness) -> None:
    """A mistyped key would otherwise be reported by /readyz and the metrics until the server restarts."""
    await two_tenants(harness)
    with pytest.raises(KeyDisabled):
        await harness.encrypted("acme", key="local:mistyped")
    assert harness.encryption.summary == "ok"
    assert "local:mistyped" not in {f"{one.provider}:{one.key}" for one in harness.encryption.health().keys}


async def test_erased_tenant_leaves_no_key_in_the_figures(harness: EncryptedHarness) -> None:
    """Its own key is destroyed, so it is no longer in use."""
    await two_tenants(harness)
    await harness.service.erasures.delete_tenant(harness.admin, "acme", confirm="acme", reason="the contract ended")
    assert {one.key for one in harness.encryption.health().keys} == {"tenant-globex"}
