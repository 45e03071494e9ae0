"""The documentation of encryption says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from tenantq.domain.validation import validated
from tenantq.kms.interface import PROVIDERS, KeyRef
from tenantq.kms.settings import (
    AwsSettings,
    AzureSettings,
    GcpSettings,
    KmsSettings,
    LocalSettings,
    RetrySettings,
)
from tenantq.vault import KeyPolicy, VaultSettings
from tenantq.vault.envelope import FORMAT, OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "internals" / "encryption.md").read_text()


def _rows(heading: str) -> Iterator[tuple[str, str]]:
    section = DOCUMENT.split(f"\n{heading}\n")[1].split("\n#")[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            name, default, _ = line.strip("|").split("|")
            yield name.strip(" `"), default.strip()


@pytest.mark.parametrize(
    "kind", [KeyPolicy, VaultSettings, RetrySettings, LocalSettings, AwsSettings, GcpSettings, AzureSettings]
)
def test_every_setting_is_documented_with_its_default(kind: type[msgspec.Struct]) -> None:
    """And nothing stands there that does not exist."""
    shown = {}
    for field in msgspec.structs.fields(kind):
        default = field.default
        text = "none" if default is None else f"{default:,}" if isinstance(default, int) else "required"
        shown[field.name] = text
    assert dict(_rows(f"### `{kind.__name__}`")) == shown


def test_every_section_of_the_settings_is_named() -> None:
    """Each provider's, the retries', and the default key."""
    for field in KmsSettings.__struct_fields__:
        assert f"[kms.{field}]" in DOCUMENT or f"`kms.{field}`" in DOCUMENT or field == "gcp", field


def test_the_example_of_settings_is_valid() -> None:
    """As a server would read it."""
    (text,) = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    given = msgspec.toml.decode(text.encode(), type=dict[str, KmsSettings])
    assert validated(given["kms"]).retry.attempts == 6


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_has_a_section(provider: str) -> None:
    """And what is given there as an example of a key can be read."""
    section = DOCUMENT.split(f"\n### `{provider}`\n")[1].split("\n#")[0]
    for text in re.findall(rf"`({provider}:[^`]+)`", section):
        assert KeyRef.parse(text).provider == provider


def test_making_a_keyring_works_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Typed as it stands."""
    (source,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(source, {})  # noqa: S102  # the session under test
    assert capsys.readouterr().out == "['main']\n"


def test_the_record_is_documented_as_it_is() -> None:
    """Its format byte and its overhead."""
    assert f"`0x{FORMAT:X}`" in DOCUMENT
    assert f"{OVERHEAD_BYTES} bytes longer" in DOCUMENT
