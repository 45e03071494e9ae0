"""Which server, as whom: flag, then environment, then profile; and a token goes nowhere but to its own server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.cli.connection import ServerTarget, choose
from tenantq.cli.profiles import Profile, Profiles, load_profiles, profiles_file, save_profiles
from tenantq.errors import Invalid, NotFound

if TYPE_CHECKING:
    from pathlib import Path

NOTHING: dict[str, str | None] = dict.fromkeys(
    ("url", "token", "profile", "tenant", "ca_file", "cert_file", "key_file")
)


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def _store(**profiles: Profile) -> None:
    save_profiles(Profiles(current=next(iter(profiles)), profiles=profiles))


def _chosen(*flags: str, **given: str) -> tuple[str, str | None, str | None]:
    target = choose({**NOTHING, **given}, set(flags))
    return target.url, target.token, target.tenant


def test_without_anything_it_is_the_default_and_nobody() -> None:
    """A server on this machine may let the anonymous in."""
    assert _chosen() == ("http://127.0.0.1:7070", None, None)


def test_the_current_profile_counts_where_nothing_is_given() -> None:
    """With all that belongs to it."""
    _store(one=Profile(url="http://one", token="t1", tenant="acme", ca_file="/ca"))  # noqa: S106
    assert _chosen() == ("http://one", "t1", "acme")
    assert choose(NOTHING, set()).tls.ca_file == "/ca"


def test_the_environment_goes_before_the_current_profile() -> None:
    """A profile's tenant is for its own token only."""
    _store(one=Profile(url="http://one", token="t1", tenant="acme"))  # noqa: S106
    assert _chosen(token="t2") == ("http://one", "t2", None)  # noqa: S106
    assert _chosen(tenant="other") == ("http://one", "t1", "other")


def test_a_profiles_token_goes_to_no_other_server() -> None:
    """Whoever names another address has to name a token for it."""
    _store(one=Profile(url="http://one/", token="t1", tenant="acme", ca_file="/ca"))  # noqa: S106
    assert _chosen("url", url="http://two") == ("http://two", None, None)
    assert choose({**NOTHING, "url": "http://two"}, {"url"}).tls.ca_file is None
    assert _chosen("url", url="http://one") == ("http://one", "t1", "acme")


def test_a_profile_that_is_named_goes_before_the_environment() -> None:
    """But not before other flags."""
    _store(one=Profile(url="http://one", token="t1"), two=Profile(url="http://two", token="t2"))  # noqa: S106
    environment = {"url": "http://env", "token": "env", "tenant": "env"}
    assert _chosen("profile", profile="two", **environment) == ("http://two", "t2", None)
    assert _chosen("profile", "token", profile="two", token="flag") == ("http://two", "flag", None)  # noqa: S106
    assert _chosen(profile="two", token="env") == ("http://two", "env", None)  # noqa: S106


def test_profiles_that_are_not_there_or_not_readable() -> None:
    """Are errors that name them."""
    with pytest.raises(NotFound, match="unknown profile 'x'; known profiles: none"):
        _chosen(profile="x")
    profiles_file().parent.mkdir()
    profiles_file().mkdir()
    with pytest.raises(Invalid, match="profiles"):
        load_profiles()


def test_nothing_shows_a_token() -> None:
    """Also not a debugger's glance at the values."""
    shown = repr(Profile(url="http://one", token="hidden"))  # noqa: S106
    shown += repr(choose({**NOTHING, "token": "hidden"}, set()))
    assert isinstance(choose(NOTHING, set()), ServerTarget)
    assert "hidden" not in shown


def test_a_file_that_cannot_be_replaced_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing beside it."""
    _store(one=Profile(url="http://one"))
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.replace", _refuse)
        with pytest.raises(OSError, match="no"):
            _store(two=Profile(url="http://two"))
    assert list(load_profiles().profiles) == ["one"]
    assert [path.name for path in profiles_file().parent.iterdir()] == ["profiles.json"]


def _refuse(*_: object) -> None:
    raise OSError("no")
