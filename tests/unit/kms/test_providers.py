"""Settings of key management systems, key names, contexts, and how providers are opened."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.domain.validation import build, validated
from tenantq.errors import Invalid
from tenantq.kms.interface import PROVIDERS, KeyRef, context_bytes
from tenantq.kms.keyring import KeyringFile, Unlock
from tenantq.kms.providers import open_kms
from tenantq.kms.settings import KmsSettings

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.runtime.clock import ManualClock

CONTEXTS = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4)


@given(one=CONTEXTS, two=CONTEXTS)
def test_different_contexts_have_different_bytes(one: dict[str, str], two: dict[str, str]) -> None:
    """Equal contexts have the same bytes in any order."""
    assert (context_bytes(one) == context_bytes(two)) == (one == two)
    assert context_bytes(one) == context_bytes(dict(reversed(one.items())))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_key_is_named_by_provider_and_key(provider: str) -> None:
    """Colons after the first belong to the key."""
    ref = KeyRef.parse(f"{provider}:arn:aws:x")
    assert ref == KeyRef(provider, "arn:aws:x")
    assert str(ref) == f"{provider}:arn:aws:x"


@pytest.mark.parametrize(
    "text", [None, 5, "", "main", "local:", ":main", "vault:main", "local:a\0b", "local:" + "x" * 3_000]
)
def test_other_names_are_refused(text: object) -> None:
    """The error shows the required form."""
    with pytest.raises(Invalid, match="key: "):
        KeyRef.parse(text)


async def test_configured_providers_are_opened(tmp_path: Path, clock: ManualClock) -> None:
    """Each under its own name; others are missing."""
    assert open_kms(KmsSettings(), clock, random.Random(7)) == {}
    ring = KeyringFile(tmp_path / "keyring.json", Unlock("passphrase", b"correct horse battery staple"))
    ring.create(scrypt_n=1 << 10)
    ring.add_key("main", clock.wall_ms())
    settings = msgspec.convert(
        {
            "local": {"keyring": str(ring.path), "passphrase_env": "PASS"},
            "aws": {"region": "eu-central-1"},
            "azure": {"vaults": ["https://acme.vault.example/"]},
        },
        KmsSettings,
    )
    opened = open_kms(settings, clock, random.Random(7), {"PASS": "correct horse battery staple"})
    assert set(opened) == {"local", "aws-kms", "azure-kv"}
    opened["aws-kms"].check_key("alias/main")
    opened["azure-kv"].check_key("https://acme.vault.example/keys/main")
    assert (await opened["local"].check("main")).state == "ok"
    for kms in opened.values():
        await kms.close()


@pytest.mark.parametrize(
    ("extra", "settings"),
    [("aws", {"aws": {}}), ("gcp", {"gcp": {}}), ("azure", {"azure": {"vaults": ["https://acme.vault.example"]}})],
)
def test_a_missing_library_is_reported(
    extra: str, settings: dict[str, Any], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that installs it."""
    monkeypatch.delitem(sys.modules, f"tenantq.kms.{extra}", raising=False)
    for name in list(sys.modules):
        if name.split(".")[0] in {"boto3", "azure"} or name.startswith("google.cloud.kms"):
            monkeypatch.delitem(sys.modules, name)
    for name in ("boto3", "google.cloud.kms_v1", "azure.core.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Invalid, match=rf"kms\.{extra}: .*pip install '\.\[{extra}\]'"):
        open_kms(msgspec.convert(settings, KmsSettings), clock, random.Random(7))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"retry": {"attempts": 0}}, "kms.retry.attempts"),
        ({"retry": {"total_ms": 1}}, "kms.retry.total_ms"),
        ({"aws": {"endpoint_url": "http://kms.example"}}, "kms.aws.endpoint_url: only https"),
        ({"aws": {"endpoint_url": "https://user:pw@kms.example"}}, "no user or password"),
        ({"gcp": {"endpoint": "kms.example"}}, "kms.gcp.endpoint"),
        ({"gcp": {"endpoint": "https://kms.example/path"}}, "only a scheme, a host and a port"),
        ({"azure": {"vaults": []}}, "kms.azure.vaults: wrong length"),
        ({"azure": {"vaults": ["http://127.0.0.1.example"]}}, "kms.azure.vaults: only https"),
        ({"azure": {"vaults": ["https://a\\b"]}}, "not a URL with a host"),
        ({"azure": {"vaults": ["https://[x"]}}, "not a URL"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], text: str) -> None:
    """The error names the setting and does not show possible secrets."""
    with pytest.raises(Invalid, match=text.replace(".", r"\.")) as caught:
        build(KmsSettings, settings, "kms.")
    assert "pw" not in str(caught.value)


def test_http_on_loopback_is_allowed() -> None:
    """For tests or a local proxy."""
    for address in ("http://127.0.0.1:8080", "http://[::1]:8080", "http://localhost", "https://kms.example:8443/"):
        settings = build(KmsSettings, {"aws": {"endpoint_url": address}})
        assert validated(settings) is settings


def test_unknown_settings_are_refused() -> None:
    """A typo does not go unnoticed."""
    given: list[dict[str, Any]] = [{"aws": {"regoin": "x"}}, {"vault": {}}, {"local": {}}]
    for wrong in given:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, KmsSettings)
