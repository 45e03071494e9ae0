"""Security signals: bursts of denied calls, calls to foreign tenants, a key used from new networks."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from tenantq.domain.alert_rules import AlertKind, Severity
from tenantq.domain.validation import about, between
from tenantq.runtime.bounded_dict import BoundedDict
from tenantq.runtime.clock import Clock

log = logging.getLogger("tenantq")

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
PLACES_MAX: Final = 64
"""Networks remembered per key; beyond that, the least recently used is dropped."""

_STEPS: Final = 12  # per window: a burst is noticed in any eleven twelfths of it
GateLimit = Annotated[int, between(1, 1_000_000)]


class SignalSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Normal levels. One more event raises an alert."""

    denials_per_minute: Annotated[GateLimit, about("Denied calls of one principal, and of one tenant.")] = 50
    cross_tenant_per_minute: Annotated[GateLimit, about("Calls of one principal to tenants without a grant.")] = 5
    new_places_per_hour: Annotated[GateLimit, about("Networks (/24, /48) that one key was not used from before.")] = 3
    quiet_ms: Annotated[
        int, between(0, 7 * 24 * HOUR_MS, "Between two alerts of the same kind about the same subject.")
    ] = 300_000


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """Something that needs a person's attention."""

    kind: AlertKind
    tenant: str
    principal: str  # empty if it concerns the whole tenant
    home: str = ""  # tenant of the principal; empty: the platform
    details: str
    severity: Severity
    at: int  # wall clock


class _SlidingWindow:
    """A count over a sliding window, and until when no alert is raised."""

    __slots__ = ("counts", "quiet_until", "step")

    def __init__(self) -> None:
        self.counts = [0] * _STEPS
        self.step = 0
        self.quiet_until = 0

    def add(self, now: int, length_ms: int) -> int:
        """Count one event and return how many there were in the last ``length_ms``."""
        step = now * _STEPS // length_ms
        for passed in range(self.step + 1, min(step, self.step + _STEPS) + 1):
            self.counts[passed % _STEPS] = 0
        self.step = max(step, self.step)
        self.counts[self.step % _STEPS] += 1
        return sum(self.counts)


class _SeenKey:
    """The networks that a key was used from."""

    __slots__ = ("last_remote", "places")

    def __init__(self, places: Sequence[str] = ()) -> None:
        self.places = list(places)[-PLACES_MAX:]  # the latest last
        self.last_remote = ""


class Signals:
    """Counts suspicious events and raises an alert beyond a limit, then none about the same subject for a while.

    An alert goes to ``raise_alert`` and to the log. Memory is bounded: the least recently seen subjects and keys are dropped.
    """

    def __init__(
        self,
        clock: Clock,
        settings: SignalSettings,
        raise_alert: Callable[[Alert], None],
        *,
        subjects_max: int = 10_000,
        keys_max: int = 100_000,
    ) -> None:
        self._clock = clock
        self.settings = settings  # may be replaced at any time
        self._raise_alert = raise_alert
        self._windows: BoundedDict[tuple[str, str, str], _SlidingWindow] = BoundedDict(subjects_max)
        self._keys: BoundedDict[str, _SeenKey] = BoundedDict(keys_max)

    def denied(self, principal: str, tenant: str, home: str = "") -> None:
        """Note a call to ``tenant``, which may be empty, that was denied to a principal of ``home``."""
        most = self.settings.denials_per_minute
        details = f"more than {most} calls denied in a minute"
        self._note("denials", principal, tenant, (principal, ""), most, MINUTE_MS, details, home)
        if tenant:
            self._note("denials", "", tenant, ("", tenant), most, MINUTE_MS, f"{details} in this tenant")

    def crossed(self, principal: str, tenant: str, target: str) -> None:
        """Note a call of ``principal``, which belongs to ``tenant``, to a tenant that it has no grant in."""
        most = self.settings.cross_tenant_per_minute
        details = f"more than {most} calls in a minute to tenants without a grant, the last to {target[:80]!r}"
        self._note("cross_tenant", principal, tenant, (principal, ""), most, MINUTE_MS, details, tenant)

    def key_used(self, principal: str, tenant: str, remote: str) -> None:
        """Note where a key was used from. The first network raises no alert."""
        key = self._keys.get(principal)
        if key is not None and key.last_remote == remote:
            self._keys.move_to_end(principal)
            return
        place = place_of(remote)
        if not place:
            return
        if key is None:
            key = self._remember(principal, _SeenKey())
        self._keys.move_to_end(principal)
        key.last_remote = remote
        if place in key.places:
            key.places.remove(place)
            key.places.append(place)
            return
        has_known_places = bool(key.places)
        key.places.append(place)
        del key.places[:-PLACES_MAX]
        if has_known_places:
            most = self.settings.new_places_per_hour
            details = f"used from more than {most} new networks in an hour, the last is {place}"
            self._note("new_places", principal, tenant, (principal, ""), most, HOUR_MS, details, tenant)

    def places(self, principal: str) -> tuple[str, ...]:
        """Return the known networks of a key, the latest last, to be stored across restarts."""
        key = self._keys.get(principal)
        return () if key is None else tuple(key.places)

    def import_places(self, places: Mapping[str, Sequence[str]]) -> None:
        """Restore exported networks. Known ones stay and count as later."""
        for principal, earlier in places.items():
            known = self.places(principal)
            self._remember(principal, _SeenKey([*(place for place in earlier if place not in known), *known]))

    def forget(self, principal: str) -> None:
        """Drop the networks of a revoked key."""
        self._keys.pop(principal, None)

    def _remember(self, principal: str, key: _SeenKey) -> _SeenKey:
        self._keys[principal] = key
        return key

    def _note(
        self,
        kind: AlertKind,
        principal: str,
        tenant: str,
        subject: tuple[str, str],
        most: int,
        length_ms: int,
        details: str,
        home: str = "",
    ) -> None:
        """Count an event of a kind for a principal or tenant, and raise an alert beyond the limit."""
        now = self._clock.monotonic_ms()
        key = (kind, *subject)
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _SlidingWindow()
        self._windows.move_to_end(key)
        if window.add(now, length_ms) <= most or now < window.quiet_until:
            return
        window.quiet_until = now + self.settings.quiet_ms
        fields = {"kind": kind, "principal": principal, "tenant": tenant}
        log.warning("alert, %s: principal %r, tenant %r: %s", kind, principal, tenant, details, extra=fields)
        self._raise_alert(
            Alert(
                kind=kind,
                tenant=tenant,
                principal=principal,
                home=home,
                details=details,
                severity="critical" if kind == "cross_tenant" else "warning",
                at=self._clock.wall_ms(),
            )
        )


@lru_cache(maxsize=4_096)
def place_of(remote: str) -> str:
    """Return the network that an address is in: /24 for IPv4, /48 for IPv6. Other text is its own network."""
    try:
        address = ipaddress.ip_address(remote.partition("%")[0])
    except ValueError:
        return remote[:80]
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    bits = 24 if address.version == 4 else 48
    return str(ipaddress.ip_network((address, bits), strict=False))
