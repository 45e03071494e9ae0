"""The connection limits of a server are reduced to fit the process's limit on open files."""

from __future__ import annotations

import logging
import resource

import pytest

from tenantq.cli.connection_limit import within_limit
from tenantq.cli.file_limit import raise_file_limit
from tenantq.http.settings import HttpSettings
from tenantq.settings import ServerSettings


def test_settings_that_fit_are_unchanged() -> None:
    """The files of the store count too."""
    settings = ServerSettings()
    assert within_limit(settings, 20_600) is settings


def test_limits_that_do_not_fit_are_reduced_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Half of a small limit is for the store, and both listeners share the rest."""
    with caplog.at_level(logging.WARNING):
        fitting = within_limit(ServerSettings(), 1_024)
    assert (fitting.listener.connections_max, fitting.rpc_listener.connections_max) == (256, 256)
    assert within_limit(ServerSettings(rpc="off"), 1_024).listener.connections_max == 512
    assert within_limit(ServerSettings(rpc="off"), 4_096).listener.connections_max == 3_496
    assert "open-file limit is 1024" in caplog.text


@pytest.mark.parametrize(
    ("settings", "limit", "level"),
    [
        (ServerSettings(), 1_024, "WARNING"),
        (ServerSettings(), 20_000, "DEBUG"),
        (ServerSettings(listener=HttpSettings(connections_max=15_000)), 20_000, "WARNING"),
    ],
)
def test_a_reduction_is_a_warning_if_it_was_configured_or_leaves_few(
    settings: ServerSettings, limit: int, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A reduced default that hardly matters is logged at a lower level."""
    with caplog.at_level(logging.DEBUG):
        within_limit(settings, limit)
    assert [record.levelname for record in caplog.records] == [level]


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system refuses, it is unchanged; if there is no hard limit, a fixed number is requested."""
    raised: list[tuple[int, int]] = []

    def refuse(_: int, wanted: tuple[int, int]) -> None:
        raise ValueError(wanted)

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 4_096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: raised.append(wanted))
    assert raise_file_limit() == 4_096
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, resource.RLIM_INFINITY))
    assert raise_file_limit() == 65_536
    assert raised == [(4_096, 4_096), (65_536, resource.RLIM_INFINITY)]
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_file_limit() == 1_024
