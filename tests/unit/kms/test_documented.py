"""The documentation of encryption matches the code."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tenantq.domain.validation import validated
from tenantq.kms.interface import PROVIDERS
from tenantq.kms.settings import KmsSettings
from tenantq.vault.envelope import FORMAT, OVERHEAD_BYTES

DOCS = Path(__file__).resolve().parents[3] / "docs"
DOCUMENT = (DOCS / "internals" / "encryption.md").read_text()
HOW_TO = (DOCS / "how-to" / "encrypt-a-tenant.md").read_text()
SETTINGS = (DOCS / "reference" / "settings.md").read_text()


def test_every_section_of_the_settings_is_documented() -> None:
    """Each provider and the retries have a section; the default key has a line."""
    for field in KmsSettings.__struct_fields__:
        assert f"Section `kms.{field}`" in SETTINGS or f"\n- `{field}`: " in SETTINGS, field


def test_the_example_settings_are_valid() -> None:
    """The server accepts the section that the page shows."""
    (text,) = re.findall(r"```toml\n(.*?)```", HOW_TO, re.DOTALL)
    given = msgspec.toml.decode(text.encode(), type=dict[str, KmsSettings])
    aws = validated(given["kms"]).aws
    assert aws is not None
    assert aws.region == "eu-central-1"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_provider_is_documented(provider: str) -> None:
    """The table of providers has a row for each."""
    assert f"\n| `{provider}` |" in HOW_TO


def test_the_record_format_is_documented() -> None:
    """The table of the record has its format byte, and its fixed fields add up to the overhead."""
    assert f"`0x{FORMAT:X}`" in DOCUMENT
    table = DOCUMENT.split("\n## Record\n")[1].split("\n#")[0]
    assert sum(int(size) for size in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)) == OVERHEAD_BYTES
