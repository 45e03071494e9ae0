"""The encryption and keyring commands, run against a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command import call, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.command import Served


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the server's data and keyring."""
    return tmp_path_factory.mktemp("encryption") / "data"


@pytest.fixture(scope="module")
def server(data_dir: Path) -> Iterator[Served]:
    """Start a server without any key settings."""
    with serving(data_dir) as served:
        yield served


def test_encryption_works_out_of_the_box(server: Served, data_dir: Path) -> None:
    """One setting turns it on; rotation, rewrapping and status work, and messages arrive unchanged."""
    server.ok("tenant", "create", "acme", "--set", "encryption.enabled=true")
    tenant = ("--tenant", "acme")
    assert server.ok("encryption", "status", *tenant, "--json").json["data_keys"] == []
    server.ok("add", "work", "a secret", *tenant)
    assert server.ok("encryption", "rotate", *tenant).out == "data key 2 now encrypts new messages\n"
    rotated = call("keyring", "rotate", "tenant-acme", "--data-dir", data_dir)
    assert "version 2 of local:tenant-acme now wraps data keys" in rotated.out
    assert server.ok("encryption", "rewrap", *tenant).out == "rewrapped 2 data keys with local:tenant-acme\n"
    status = server.ok("encryption", "status", *tenant).out
    assert "key\tlocal:tenant-acme\n" in status
    assert "key_state\tok\n" in status
    assert "data key\tcreated\twrapped by\tuses reserved\n1\t" in status
    (seen,) = server.ok("queue", "peek", "work", *tenant, "--json").json["messages"]
    assert (seen["body"], seen["encrypted"]) == ("a secret", True)
    (got,) = server.ok("poll", "work", *tenant, "--json").json_lines
    assert got["body"] == "a secret"


def test_unknown_key_is_a_one_line_conflict(server: Served) -> None:
    """The tenant is not created."""
    done = server.call(
        "tenant", "create", "blue", "--set", "encryption.enabled=true", "--set", "encryption.key=local:none"
    )
    assert done.code == 7
    assert done.err.count("\n") == 1
    assert "the keyring has no key of this name" in done.err
    assert server.call("tenant", "show", "blue").code == 3


def test_status_shows_a_disabled_key(server: Served, data_dir: Path) -> None:
    """The running server notices it, refuses to use it, and uses it again once it is enabled."""
    assert call("keyring", "add", "shared", "--data-dir", data_dir).out == "added local:shared\n"
    server.ok("tenant", "create", "green", "--set", "encryption.key=local:shared", "--set", "encryption.enabled=true")
    assert call("keyring", "disable", "shared", "--data-dir", data_dir).code == 0
    refused = server.call("add", "work", "x", "--tenant", "green")
    assert (refused.code, "disabled" in refused.err) == (7, True)
    assert server.ok("encryption", "status", "--tenant", "green", "--json").json["key_state"] == "disabled"
    assert call("keyring", "enable", "shared", "--data-dir", data_dir).code == 0


def test_keyring_commands(tmp_path: Path) -> None:
    """Create, add, list, protect, rotate, disable and remove keys; every error is one line."""
    where = ("--keyring", tmp_path / "ring.json", "--master-key-file", tmp_path / "master")
    assert call("keyring", "create", *where).code == 0
    again = call("keyring", "create", *where)
    assert (again.code, "already exists" in again.err) == (7, True)
    assert call("keyring", "add", "main", *where).code == 0
    (key,) = call("keyring", "list", *where, "--json").json["keys"]
    assert (key["name"], key["version"], key["enabled"]) == ("main", 1, True)
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("correct horse battery staple\n")
    open_to_all = call("keyring", "protect", *where, "--new-passphrase-file", passphrase)
    assert (open_to_all.code, "chmod 600" in open_to_all.err) == (2, True)
    passphrase.chmod(0o600)
    assert call("keyring", "protect", *where, "--new-passphrase-file", passphrase).code == 0
    assert call("keyring", "list", *where).code == 2
    other = ("--keyring", tmp_path / "ring.json", "--passphrase-file", passphrase)
    unknown = call("keyring", "remove", "mian", *other)
    assert (unknown.code, "no key 'mian'" in unknown.err) == (3, True)
    nobody = call("keyring", "remove", "main", *other)
    assert (nobody.code, "No terminal to ask for confirmation. Give --yes." in nobody.err) == (2, True)
    told = [
        call("keyring", *words, *other, "--json").json
        for words in (("add", "spare"), ("rotate", "spare"), ("disable", "spare"))
    ]
    assert told == [
        {"name": "spare", "version": 1},
        {"name": "spare", "version": 2},
        {"name": "spare", "enabled": False},
    ]
    assert call("keyring", "remove", "spare", *other, "--yes", "--json").json == {"name": "spare", "removed": True}
    assert call("keyring", "remove", "main", *other, "--yes").out == "destroyed local:main\n"
    assert call("keyring", "list", *other, "--json").json == {"keys": []}
    assert call("keyring", "list", "--data-dir", tmp_path / "nowhere").code == 2


def test_server_does_not_replace_a_missing_keyring(data_dir: Path, server: Served, tmp_path: Path) -> None:
    """It says in one line what to do, and starts when the keyring is back."""
    server.ok("tenant", "create", "red", "--set", "encryption.enabled=true")
    server.ok("add", "work", "x", "--tenant", "red")
    server.process.terminate()
    server.process.wait(30)
    keyring = data_dir / "keyring.json"
    keyring.rename(tmp_path / "away")
    refused = call("serve", "--data-dir", data_dir, "--http", "127.0.0.1:0")
    assert refused.code == 2
    assert "the keyring is missing" in refused.err
    (tmp_path / "away").rename(keyring)
    with serving(data_dir) as again:
        (got,) = again.ok("poll", "work", "--tenant", "red", "--json").json_lines
        assert got["body"] == "x"
