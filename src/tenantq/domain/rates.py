"""How fast and how much at once: the rate and concurrency limits that can be set, with their ranges."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from tenantq.domain.message import check_int
from tenantq.errors import Invalid

OPS_PER_SEC_MAX: Final = 1_000_000_000
BYTES_PER_SEC_MAX: Final = 1 << 40
CONCURRENCY_MAX: Final = 100_000


class Rate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be done a second, in the long run; None: as much as one likes."""

    ops_per_sec: int | None = None  # messages, or calls that concern no message
    bytes_per_sec: int | None = None  # of bodies; so many may also come at once
    burst: int | None = None  # operations that may come at once after a rest; None: one second's worth

    @property
    def ops_burst(self) -> int:
        """The most operations that may come at once."""
        return self.burst or self.ops_per_sec or 0


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rate limits of a tenant or a queue; writing and reading never share one."""

    write: Rate = Rate()
    read: Rate = Rate()


class Concurrency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a tenant's work may be in flight at a time; what is beyond waits its turn."""

    requests: int = 1_000  # of the tenant
    adds: int = 256  # to one queue
    polls: int = 256  # of one queue


NO_LIMITS: Final = Limits()

_Settings = TypeVar("_Settings", bound=msgspec.Struct)


def check_limits(limits: object, field: str = "limits") -> Limits:
    """Return limits, also if given as plain mappings, or raise Invalid naming the field, the value and the range."""
    checked = _built(limits, Limits, field)
    write = check_rate(checked.write, f"{field}.write")
    read = check_rate(checked.read, f"{field}.read")
    return Limits(write=write, read=read)


def check_rate(rate: object, field: str) -> Rate:
    """Return a rate, also if given as a plain mapping, or raise Invalid naming the field, the value and the range."""
    checked = _built(rate, Rate, field)
    if checked.ops_per_sec is not None:
        check_int(f"{field}.ops_per_sec", checked.ops_per_sec, 1, OPS_PER_SEC_MAX)
    if checked.bytes_per_sec is not None:
        check_int(f"{field}.bytes_per_sec", checked.bytes_per_sec, 1, BYTES_PER_SEC_MAX)
    if checked.burst is not None:
        check_int(f"{field}.burst", checked.burst, 1, OPS_PER_SEC_MAX)
        if checked.ops_per_sec is None:
            raise Invalid(f"{field}.burst: {checked.burst} operations at once mean nothing without {field}.ops_per_sec")
    return checked


def check_concurrency(concurrency: object, field: str = "concurrency") -> Concurrency:
    """Return the bounds, also if given as a plain mapping, or raise Invalid naming the field, the value and the range."""
    checked = _built(concurrency, Concurrency, field)
    for name in Concurrency.__struct_fields__:
        check_int(f"{field}.{name}", getattr(checked, name), 1, CONCURRENCY_MAX)
    return checked


def _built(value: object, kind: type[_Settings], field: str) -> _Settings:
    """Return ``value`` as settings of ``kind``; what stands in its fields is not checked here."""
    if isinstance(value, kind):
        return value
    known = kind.__struct_fields__
    if not isinstance(value, dict):
        raise Invalid(f"{field}: must be an object with {', '.join(known)}, not {type(value).__name__}")
    settings: dict[str, Any] = {}
    for name, setting in value.items():
        if name not in known:
            raise Invalid(f"{field}: there is no setting {str(name)[:80]!r}; there are {', '.join(known)}")
        settings[name] = setting
    return kind(**settings)
