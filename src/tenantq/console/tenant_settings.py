"""The form of a tenant's weight, quotas, limits and alerts."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from tenantq.domain.formatting import dotted, nested, parse_value
from tenantq.domain.limits import REASON_CHARS_MIN
from tenantq.errors import Invalid


class FormField(msgspec.Struct, frozen=True):
    """One field of a form."""

    name: str
    label: str
    value: str = ""
    hint: str = ""  # shown while the field is empty


_SETTINGS: Final = (
    ("weight", "weight", "1 to 1000"),
    ("quotas.messages_per_hour", "messages per hour", "no limit"),
    ("quotas.messages_per_day", "messages per day", "no limit"),
    ("quotas.backlog", "backlog", "no limit"),
    ("quotas.stored_bytes", "stored bytes", "no limit, or such as 10GiB"),
    ("quotas.in_flight", "in flight", "no limit"),
    ("quotas.message_bytes", "bytes per message", "no limit, or such as 64KiB"),
    ("quotas.queues", "queues", "no limit"),
    ("quotas.consumers_per_queue", "consumers per queue", "no limit"),
    ("quotas.soft_percent", "warn at percent", "80"),
    ("alerts.quota_percent", "alert at % of a quota", "no alert, unless the server has one"),
    ("limits.write.ops_per_sec", "writes per second", "no limit"),
    ("limits.write.bytes_per_sec", "bytes written per sec", "no limit, or such as 10MiB"),
    ("limits.write.burst", "burst of writes", "the amount of one second"),
    ("limits.read.ops_per_sec", "reads per second", "no limit"),
    ("limits.read.bytes_per_sec", "bytes read per sec", "no limit, or such as 10MiB"),
    ("limits.read.burst", "burst of reads", "the amount of one second"),
)
REASON: Final = FormField("reason", "reason", hint="stored in the audit trail")
_UNSET: Final = "no limit"
_NEVER_EMPTY: Final = ("weight", "quotas.soft_percent")


def form_fields(config: Mapping[str, Any], *, unset: str = _UNSET) -> list[FormField]:
    """Return the fields of the form, filled with a tenant's settings. ``unset`` is the hint in the others."""
    known = {name: str(value) for name, value in dotted(config) if value is not None}
    return [FormField(name, label, known.get(name, ""), hint.replace(_UNSET, unset)) for name, label, hint in _SETTINGS]


def changed_settings(config: Mapping[str, Any], typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that differ from ``config``, nested as in the HTTP interface. An empty field means no limit. Raises Invalid."""
    known = dict(dotted(config))
    values = [(name, _typed_value(name, label, typed[name].strip())) for name, label, _ in _SETTINGS if name in typed]
    return nested(
        (name, value)
        for name, value in values
        if value != known.get(name) and (value is not None or name not in _NEVER_EMPTY)
    )


def with_reason(changes: dict[str, Any], typed: Mapping[str, str]) -> dict[str, Any]:
    """Return changes with the typed reason. Raises Invalid if there are changes but no reason."""
    reason = typed["reason"].strip()
    if changes and not reason:
        raise Invalid("reason: must not be empty; it is stored in the audit trail")
    return {**changes, "reason": reason} if changes else {}


def check_destroy(name: str, typed: Mapping[str, str]) -> str:
    """Return the reason. Raises Invalid if the name was not repeated, or if the reason is too short."""
    if typed["confirm"].strip() != name:
        raise Invalid("the name does not match; nothing was changed")
    reason = typed["reason"].strip()
    if len(reason) < REASON_CHARS_MIN:
        raise Invalid(f"reason: must have at least {REASON_CHARS_MIN} characters; it is stored in the audit trail")
    return reason


def _typed_value(name: str, label: str, text: str) -> int | None:
    if not text:
        return None
    value = parse_value(name, text.replace(",", "").replace("_", ""))
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise Invalid(f"{label}: {text[:40]!r} is not a number such as 5000 or 10MiB; leave it empty for no limit")
