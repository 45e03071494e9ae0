"""``tenantq topology``, against two real servers in two regions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command import ADMIN_TOKEN, call, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.command import Done, Served


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    """Return a server in eu that has tenants, and one in us."""
    home = tmp_path_factory.mktemp("two")
    eu = {"TENANTQ_SHARD__REGION": "eu", "TENANTQ_SHARD__NAME": "eu-1", "TENANTQ_SHARD__ADDRESS": "https://eu.example"}
    us = {"TENANTQ_SHARD__REGION": "us", "TENANTQ_SHARD__NAME": "us-1"}
    with serving(home / "eu", **eu) as first, serving(home / "us", **us) as second:
        first.ok("tenant", "create", "acme", "--set", "regions=eu,")
        first.ok("tenant", "create", "free")
        for queue in ("one", "two", "three", "four"):
            first.ok("add", queue, "hello", "--tenant", "free")
        first.ok("add", "mail", "hello", "--tenant", "acme")
        yield first, second


def write(file: Path, *shards: tuple[str, str, str]) -> Path:
    """Write a topology of names, regions and addresses."""
    file.write_text(
        "".join(f'[[shards]]\nname = "{n}"\nregion = "{r}"\naddress = "{a}"\n' for n, r, a in shards), encoding="utf-8"
    )
    return file


def test_server_describes_its_shard(two: tuple[Served, Served]) -> None:
    """Every credential may ask; the address is the configured one, or else the one that was called."""
    first, second = two
    shown = first.ok("topology", "show", "--json").json
    assert shown["shards"] == [{"name": "eu-1", "region": "eu", "address": "https://eu.example"}]
    assert shown["encryption"] is True
    assert shown["server"] != second.ok("topology", "show", "--json").json["server"]
    assert second.url in second.ok("topology", "show").out
    token = json.loads(first.ok("key", "create", "p", "--role", "producer", "--tenant", "acme", "--json").out)["token"]
    assert first.ok("topology", "show", "--json", TENANTQ_TOKEN=token).json["shards"] == shown["shards"]
    assert first.call("topology", "show", TENANTQ_TOKEN="wrong").code == 4  # noqa: S106  # opens nothing


def test_a_topology_is_checked_against_tenants_and_servers(two: tuple[Served, Served], tmp_path: Path) -> None:
    """Each tenant without a shard and each shard that differs from the file is named."""
    first, second = two
    good = write(tmp_path / "good.toml", ("eu-1", "eu", first.url), ("us-1", "us", second.url))
    fine = first.ok("topology", "check", good, "--tenants", "--probe", "--json").json
    assert fine["regions"] == {"eu": 1, "us": 1}
    assert [one["state"] for one in fine["probed"]] == ["ok", "ok"]
    assert fine["homeless"] == []
    away = write(tmp_path / "away.toml", ("us-1", "us", second.url))
    refused = first.call("topology", "check", away, "--tenants")
    assert refused.code == 7
    assert "tenant acme: no shard in eu" in refused.out
    assert "free" not in refused.out
    crossed = write(tmp_path / "crossed.toml", ("eu-1", "eu", second.url), ("us-1", "us", "http://127.0.0.1:1"))
    probed = first.call("topology", "check", crossed, "--probe")
    assert probed.code == 7
    assert "is us-1 in us, not eu-1 in eu" in probed.out
    silent = write(tmp_path / "silent.toml", ("eu-1", "eu", first.url), ("us-1", "us", "http://127.0.0.1:1"))
    assert first.call("topology", "check", silent, "--probe").code == 6
    (tmp_path / "bad.toml").write_text("[[shards]]\nname = 'x'\nregion = 'EU!'\n")
    assert first.call("topology", "check", tmp_path / "bad.toml").code == 2
    assert first.call("topology", "check", tmp_path / "none.toml").code == 2


def test_probe_sends_a_profiles_token_only_to_its_server(two: tuple[Served, Served], tmp_path: Path) -> None:
    """A server in the file gets only an explicit token, or that of a profile with the same address."""
    first, second = two
    file = write(tmp_path / "t.toml", ("eu-1", "eu", first.url), ("us-1", "us", second.url))

    def called(*arguments: object) -> Done:
        return call(*arguments, XDG_CONFIG_HOME=str(tmp_path))

    def states() -> list[str]:
        return [one["state"] for one in called("topology", "check", file, "--probe", "--json").json["probed"]]

    assert called("profile", "add", "here", "--url", first.url, "--token", ADMIN_TOKEN).code == 0
    assert states() == ["ok", "silent"]
    assert called("profile", "add", "there", "--url", second.url, "--token", ADMIN_TOKEN).code == 0
    assert called("profile", "use", "here").code == 0
    assert states() == ["ok", "ok"]


def test_tenant_is_routed_by_name_within_its_regions(two: tuple[Served, Served], tmp_path: Path) -> None:
    """No shard in an allowed region is an error, and so is an unknown tenant or queue."""
    first, _ = two
    file = write(tmp_path / "t.toml", ("us-1", "us", "u"), ("eu-1", "eu", "e"), ("us-2", "us", "v"))
    found = first.ok("topology", "route", "acme", "--topology", file, "--json").json
    assert found == {"tenant": "acme", "region": "eu", "shard": "eu-1", "address": "e"}
    assert first.ok("topology", "route", "acme", "mail", "--topology", file, "--json").json == found
    assert first.ok("topology", "route", "free", "--topology", file, "--json").json["shard"] in {"us-1", "eu-1", "us-2"}
    us = write(tmp_path / "us.toml", ("us-1", "us", ""))
    refused = first.call("topology", "route", "acme", "--topology", us)
    assert refused.code == 2
    assert "no shard is in a region that the tenant allows: eu" in refused.err
    assert first.call("topology", "route", "acme", "nothing", "--topology", file).code == 3
    assert first.call("topology", "route", "nobody", "--topology", file).code == 3


def test_plan_shows_what_another_topology_would_move(two: tuple[Served, Served], tmp_path: Path) -> None:
    """It has counts and bytes of each shard before and after, names tenants without a shard, and changes nothing."""
    first, _ = two
    file = write(tmp_path / "t.toml", ("eu-1", "eu", ""), ("us-1", "us", ""))
    found = first.ok("topology", "plan", "--from", file, "--add", 4, "--add-in", "ap=2", "--json").json
    assert len(found["shards"]) == 8
    for side in ("before", "after"):
        assert sum(one[f"tenants_{side}"] for one in found["shards"]) == found["tenants"] == 3
        assert sum(one[f"queues_{side}"] for one in found["shards"]) == 5
    assert sum(one["bytes_after"] for one in found["shards"]) == sum(one["bytes_before"] for one in found["shards"])
    assert found["moved_tenants"] == len(found["moves"]) > 0
    assert all(one["to_region"] == "eu" for one in found["moves"] if one["tenant"] == "acme")
    table = first.ok("topology", "plan", "--from", file, "--add", 4).out
    assert "tenants would move" in table
    us = write(tmp_path / "us.toml", ("us-1", "us", ""))
    refused = first.call("topology", "plan", "--from", file, "--to", us)
    assert (refused.code, "acme (eu)" in refused.err) == (2, True)
    assert first.call("topology", "plan", "--from", file).code == 2
    assert first.call("topology", "plan", "--from", file, "--to", us, "--add", 1).code == 2
    assert first.call("topology", "plan", "--from", file, "--add", 1, "--ask", "nobody").code == 3
