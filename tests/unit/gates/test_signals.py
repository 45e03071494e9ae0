"""Signals: suspicious activity raises one alert and then a quiet time; normal activity raises none."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.domain.validation import validated
from tenantq.errors import Invalid
from tenantq.gates.signals import PLACES_MAX, Alert, Signals, SignalSettings, place_of
from tenantq.runtime.clock import ManualClock


@pytest.fixture
def alerts() -> list[Alert]:
    """Collect the alerts that were raised."""
    return []


@pytest.fixture
def signals(clock: ManualClock, alerts: list[Alert]) -> Signals:
    """Return signals with the default settings."""
    return Signals(clock, SignalSettings(), alerts.append)


def test_a_burst_of_denials_raises_one_alert_about_the_principal_and_one_about_the_tenant(
    clock: ManualClock, signals: Signals, alerts: list[Alert], caplog: pytest.LogCaptureFixture
) -> None:
    """Both are logged. After the quiet time they are raised again if the denials continue."""
    for _ in range(50):
        signals.denied("key:1", "acme")
    assert alerts == []
    with caplog.at_level(logging.WARNING, "tenantq"):
        for _ in range(1_000):
            signals.denied("key:1", "acme")
    assert [(alert.kind, alert.principal, alert.tenant) for alert in alerts] == [
        ("denials", "key:1", "acme"),
        ("denials", "", "acme"),
    ]
    assert (alerts[0].severity, alerts[0].at) == ("warning", clock.wall_ms())
    assert alerts[0].details == "more than 50 calls denied in a minute"
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "'key:1'" in caplog.text
    for _ in range(299):
        clock.advance(1_000)
        signals.denied("key:1", "acme")
    assert len(alerts) == 2
    clock.advance(1_000)
    signals.denied("key:1", "acme")
    assert len(alerts) == 4


def test_denials_of_many_principals_add_up_for_the_tenant(signals: Signals, alerts: list[Alert]) -> None:
    """Denials of one principal add up over tenants."""
    for n in range(51):
        signals.denied(f"key:{n}", "acme")
    assert [(alert.principal, alert.tenant) for alert in alerts] == [("", "acme")]
    for n in range(51):
        signals.denied("jwt:eve", f"tenant-{n}")
    assert [(alert.principal, alert.tenant) for alert in alerts[1:]] == [("jwt:eve", "tenant-50")]


def test_a_slow_trickle_of_denials_raises_no_alert(clock: ManualClock, signals: Signals, alerts: list[Alert]) -> None:
    """Fifty a minute may continue forever."""
    for _ in range(500):
        signals.denied("key:1", "acme")
        clock.advance(1_200)
    assert alerts == []


def test_unknown_callers_are_counted_without_a_tenant(signals: Signals, alerts: list[Alert]) -> None:
    """No tenant can be named in the alert."""
    for _ in range(60):
        signals.denied("unknown", "")
    assert [(alert.principal, alert.tenant) for alert in alerts] == [("unknown", "")]


def test_attempts_on_other_tenants_raise_a_critical_alert(
    clock: ManualClock, signals: Signals, alerts: list[Alert]
) -> None:
    """A few attempts on any other tenants are enough; one a minute is tolerated."""
    for _ in range(10):
        signals.crossed("key:1", "acme", "bolt")
        clock.advance(30_000)
    assert alerts == []
    for n in range(20):
        signals.crossed("key:1", "acme", f"tenant-{n}")
    (alert,) = alerts
    assert (alert.kind, alert.severity) == ("cross_tenant", "critical")
    assert (alert.principal, alert.tenant) == ("key:1", "acme")
    assert alert.details.startswith("more than 5 calls in a minute to tenants without a grant, the last to 'tenant-")


def test_a_hostile_name_is_quoted_and_shortened_in_the_log(signals: Signals, caplog: pytest.LogCaptureFixture) -> None:
    """It cannot start a new log line."""
    for _ in range(6):
        signals.crossed("key:1\nroot", "acme", "x\n" + "y" * 1_000)
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 400


def test_a_key_used_from_too_many_new_networks_raises_an_alert(
    clock: ManualClock, signals: Signals, alerts: list[Alert]
) -> None:
    """The first network is expected, three new ones an hour are tolerated, and known ones never count."""
    for n in range(4):
        for host in range(1, 5):
            signals.key_used("key:1", "acme", f"10.0.{n}.{host}")
    assert alerts == []
    signals.key_used("key:1", "acme", "10.0.4.1")
    signals.key_used("key:1", "acme", "10.0.5.1")
    (alert,) = alerts
    assert (alert.kind, alert.severity, alert.principal, alert.tenant) == ("new_places", "warning", "key:1", "acme")
    assert alert.details == "used from more than 3 new networks in an hour, the last is 10.0.4.0/24"
    clock.advance(7_200_000)
    for _ in range(100):
        for n in range(6):
            signals.key_used("key:1", "acme", f"10.0.{n}.9")
    assert len(alerts) == 1


def test_new_networks_at_a_slow_rate_raise_no_alert(clock: ManualClock, signals: Signals, alerts: list[Alert]) -> None:
    """Two an hour may continue forever, and each key is counted separately."""
    for n in range(60):
        signals.key_used("key:1", "acme", f"10.0.{n}.1")
        signals.key_used(f"key:x{n}", "acme", f"10.1.{n}.1")
        clock.advance(1_800_000)
    assert alerts == []


def test_the_number_of_known_networks_is_bounded(clock: ManualClock, signals: Signals) -> None:
    """The most recently used ones are kept."""
    for n in range(100):
        signals.key_used("key:1", "acme", f"10.0.{n}.1")
        signals.key_used("key:1", "acme", "10.9.9.9")
    places = signals.places("key:1")
    assert len(places) == PLACES_MAX
    assert places[-2:] == ("10.0.99.0/24", "10.9.9.0/24")
    assert "10.0.0.0/24" not in places
    assert signals.places("key:none") == ()


def test_known_networks_survive_a_restart(clock: ManualClock, signals: Signals, alerts: list[Alert]) -> None:
    """After an export and import they do not count as new."""
    for n in range(4):
        signals.key_used("key:1", "acme", f"10.0.{n}.1")
    kept = {name: signals.places(name) for name in signals._keys}
    assert kept == {"key:1": tuple(f"10.0.{n}.0/24" for n in range(4))}
    again = Signals(clock, SignalSettings(new_places_per_hour=1), alerts.append)
    again.key_used("key:1", "acme", "10.0.9.1")
    again.import_places(kept)
    assert again.places("key:1") == (*kept["key:1"], "10.0.9.0/24")
    for n in range(4):
        again.key_used("key:1", "acme", f"10.0.{n}.77")
    again.key_used("key:1", "acme", "10.0.5.1")
    assert alerts == []
    again.key_used("key:1", "acme", "10.0.6.1")
    assert len(alerts) == 1
    again.forget("key:1")
    again.forget("key:1")
    assert {name: again.places(name) for name in again._keys} == {}


@pytest.mark.parametrize(
    ("remote", "place"),
    [
        ("192.168.7.55", "192.168.7.0/24"),
        ("2001:db8:1:2:3::4", "2001:db8:1::/48"),
        ("::ffff:192.168.7.55", "192.168.7.0/24"),
        ("fe80::1%eth0", "fe80::/48"),
        ("unix", "unix"),
        ("x" * 500, "x" * 80),
        ("", ""),
    ],
)
def test_addresses_are_grouped_by_network(remote: str, place: str) -> None:
    """Every form of address belongs to one network."""
    assert place_of(remote) == place


def test_a_call_without_an_address_has_no_network(signals: Signals) -> None:
    """The transport may not know the address."""
    signals.key_used("key:1", "acme", "")
    assert signals.places("key:1") == ()


def test_memory_is_bounded(clock: ManualClock, alerts: list[Alert]) -> None:
    """The least recently active subjects and keys are forgotten first."""
    signals = Signals(clock, SignalSettings(), alerts.append, subjects_max=10, keys_max=10)
    signals.key_used("key:busy", "acme", "10.7.7.7")
    for n in range(500):
        signals.denied("key:busy", "")
        signals.denied(f"key:{n}", "")
        signals.key_used("key:busy", "acme", "10.0.0.1")
        signals.key_used(f"key:{n}", "acme", "10.0.0.1")
    assert len(signals._windows) == len(signals._keys) == 10
    assert [alert.principal for alert in alerts] == ["key:busy"]
    assert signals.places("key:busy") == ("10.7.7.0/24", "10.0.0.0/24")
    signals.import_places({f"key:i{n}": ["a"] for n in range(50)})
    assert len(signals._keys) == 10


def test_thresholds_can_be_changed_online(signals: Signals, alerts: list[Alert]) -> None:
    """The next call is compared with the new thresholds."""
    signals.denied("key:1", "")
    signals.settings = SignalSettings(denials_per_minute=1)
    signals.denied("key:1", "")
    assert len(alerts) == 1


@pytest.mark.parametrize("field", SignalSettings.__struct_fields__)
def test_each_setting_has_a_range(field: str) -> None:
    """The error names the setting."""
    assert validated(SignalSettings()) == SignalSettings()
    for value in (-1, 10**12, 1.5, "3", None):
        with pytest.raises(Invalid, match=rf"^signals\.{field}: "):
            validated(SignalSettings(**{field: value}), "signals.")  # type: ignore[arg-type]  # that is the point


@given(gaps=st.lists(st.integers(0, 4_000), min_size=1, max_size=150))
def test_an_alert_is_raised_only_for_too_many_denials_in_a_minute(gaps: list[int]) -> None:
    """There are no false alerts, and a burst within eleven twelfths of a minute always raises one per quiet time."""
    clock, raised = ManualClock(), list[int]()
    signals = Signals(
        clock,
        SignalSettings(denials_per_minute=10, quiet_ms=50_000),
        lambda _: raised.append(clock.monotonic_ms()),
    )
    at: list[int] = []
    for gap in gaps:
        clock.advance(gap)
        at.append(clock.monotonic_ms())
        before = len(raised)
        signals.denied("key:1", "")
        if len(raised) > before:
            assert sum(at[-1] - one < 60_000 for one in at) > 10
            assert before == 0 or raised[-1] - raised[-2] >= 50_000
        elif not raised or at[-1] - raised[-1] >= 50_000:
            assert sum(at[-1] - one <= 55_000 for one in at) <= 10
