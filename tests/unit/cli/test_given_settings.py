"""Settings as users type them."""

from __future__ import annotations

import click
import pytest

from tenantq.cli.options import parse_settings


def test_values_are_parsed_by_form_and_unit() -> None:
    """The name of the setting gives the unit where it has one."""
    given = [
        "weight=3", "create_queues=false", "quotas.backlog=none", "quotas.stored_bytes=10MiB", "limits.write.ops_per_sec=50",
        "limits.write.burst=100", "defaults.lease_ms=5m", "defaults.ttl_ms=250", "dead_letter=letters", "regions=eu,us", "x=",
    ]  # fmt: skip
    assert parse_settings(given) == {
        "weight": 3,
        "create_queues": False,
        "quotas": {"backlog": None, "stored_bytes": 10 << 20},
        "limits": {"write": {"ops_per_sec": 50, "burst": 100}},
        "defaults": {"lease_ms": 300_000, "ttl_ms": 250},
        "dead_letter": "letters",
        "regions": ["eu", "us"],
        "x": "",
    }


@pytest.mark.parametrize("given", [["weight"], ["=3"], ["quotas=1", "quotas.backlog=2"]])
def test_malformed_settings_are_refused(given: list[str]) -> None:
    """The error shows the expected form."""
    with pytest.raises(click.BadParameter, match=r"NAME=VALUE|as a group"):
        parse_settings(given)
