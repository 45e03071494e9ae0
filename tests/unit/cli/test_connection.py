"""Server and credential come from the flags, the environment or a profile, and a token is sent only to its own server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.cli.connection import choose
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


def test_without_settings_the_default_address_is_used_without_a_token() -> None:
    """A local server may allow anonymous calls."""
    assert _chosen() == ("http://127.0.0.1:7070", None, None)


def test_the_current_profile_is_used_if_nothing_is_given() -> None:
    """With all of its values."""
    _store(one=Profile(url="http://one", token="t1", tenant="acme", ca_file="/ca"))  # noqa: S106
    assert _chosen() == ("http://one", "t1", "acme")
    assert choose(NOTHING, set()).tls.ca_file == "/ca"


def test_the_environment_overrides_the_current_profile() -> None:
    """The profile's tenant is used only with the profile's token."""
    _store(one=Profile(url="http://one", token="t1", tenant="acme"))  # noqa: S106
    assert _chosen(token="t2") == ("http://one", "t2", None)  # noqa: S106
    assert _chosen(tenant="other") == ("http://one", "t1", "other")


def test_a_profiles_token_is_sent_to_no_other_server() -> None:
    """Another address needs its own token."""
    _store(one=Profile(url="http://one/", token="t1", tenant="acme", ca_file="/ca"))  # noqa: S106
    assert _chosen("url", url="http://two") == ("http://two", None, None)
    assert choose({**NOTHING, "url": "http://two"}, {"url"}).tls.ca_file is None
    assert _chosen("url", url="http://one") == ("http://one", "t1", "acme")


def test_a_named_profile_overrides_the_environment() -> None:
    """Other flags override the profile."""
    _store(one=Profile(url="http://one", token="t1"), two=Profile(url="http://two", token="t2"))  # noqa: S106
    environment = {"url": "http://env", "token": "env", "tenant": "env"}
    assert _chosen("profile", profile="two", **environment) == ("http://two", "t2", None)
    assert _chosen("profile", "token", profile="two", token="flag") == ("http://two", "flag", None)  # noqa: S106
    assert _chosen(profile="two", token="env") == ("http://two", "env", None)  # noqa: S106


def test_missing_and_unreadable_profiles_are_errors() -> None:
    """The error names the profile or the file."""
    with pytest.raises(NotFound, match="unknown profile 'x'; known profiles: none"):
        _chosen(profile="x")
    profiles_file().parent.mkdir()
    profiles_file().mkdir()
    with pytest.raises(Invalid, match="profiles"):
        load_profiles()


def test_no_representation_shows_a_token() -> None:
    """A debugger does not show it either."""
    shown = repr(Profile(url="http://one", token="hidden"))  # noqa: S106
    shown += repr(choose({**NOTHING, "token": "hidden"}, set()))
    assert "hidden" not in shown


def test_a_failed_replacement_keeps_the_old_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """No temporary file is left."""
    _store(one=Profile(url="http://one"))
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.replace", _refuse)
        with pytest.raises(OSError, match="no"):
            _store(two=Profile(url="http://two"))
    assert list(load_profiles().profiles) == ["one"]
    assert [path.name for path in profiles_file().parent.iterdir()] == ["profiles.json"]


def _refuse(*_: object) -> None:
    raise OSError("no")
