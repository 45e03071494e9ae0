"""Gate settings: unknown names and values out of range are refused before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.errors import Invalid
from tenantq.settings import load_settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[gates]\nserver_requests = 0", "gates.server_requests"),
        ("[gates]\nserver_requests = -5", "gates.server_requests"),
        ("[gates]\nslot_wait_ms = 99999999999", "gates.slot_wait_ms"),
        ("[gates]\nrefusal_rows_per_second = 0", "gates.refusal_rows_per_second"),
        ("[gates]\nconsumer_idle_ms = 1.5", "consumer_idle_ms"),
        ("[gates]\nserver_request = 5", "server_request"),
        ("[gates.signals]\ndenials_per_minute = 0", "gates.signals.denials_per_minute"),
        ("[gates.signals]\ndenials = 1", "denials"),
        ("[shard]\ndurabilty = 'os'", "durabilty"),
    ],
)
def test_invalid_setting_is_named(tmp_path: Path, text: str, named: str) -> None:
    """A server never starts with a meaningless limit or a misspelled name."""
    file = tmp_path / "tenantq.toml"
    file.write_text(text)
    with pytest.raises(Invalid) as caught:
        load_settings(file, {}, {})
    assert named in caught.value.message


def test_valid_settings_are_applied(tmp_path: Path) -> None:
    """The environment overrides the file."""
    file = tmp_path / "tenantq.toml"
    file.write_text("[gates]\nserver_requests = 7\nslot_wait_ms = 9")
    loaded = load_settings(file, {"TENANTQ_GATES__SERVER_REQUESTS": "8"}, {})
    assert (loaded.gates.server_requests, loaded.gates.slot_wait_ms) == (8, 9)
