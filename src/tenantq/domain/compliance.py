"""Compliance controls and their thresholds."""

from typing import Annotated, Final, Literal

import msgspec

from tenantq.domain.limits import DAY_MS
from tenantq.domain.validation import about, between

ControlStatus = Literal["pass", "fail", "not_applicable"]
_Days = Annotated[int, between(1, 3_650)]


class Control(msgspec.Struct, frozen=True):
    """A control: its requirement, and where standards ask for it."""

    title: str
    threshold: str  # with names of settings
    soc2: str  # criterion of the trust services criteria
    gdpr: str = ""  # paragraph of article 30 that it is evidence for, if any


CONTROLS: Final = {
    "encryption": Control("Messages are encrypted at rest", "required {encryption_scope}", "CC6.7", "30.1.g"),
    "key_rotation": Control("Data keys are rotated", "at most {key_rotation_days} days old", "CC6.1", "30.1.g"),
    "keys_used": Control("Unused API keys are revoked", "used within {key_unused_days} days", "CC6.2", "30.1.g"),
    "grants_reviewed": Control("Grants are reviewed", "reviewed within {grant_review_days} days", "CC6.3", "30.1.g"),
    "self_checks": Control(
        "The server checks itself: isolation, quotas and encryption keys",
        "passed within {check_hours} hours",
        "CC7.1",
        "30.1.g",
    ),
    "alert_response": Control(
        "Alerts are resolved or silenced in time", "resolved or silenced within {alert_hours} hours", "CC7.4"
    ),
    "audit_chain": Control(
        "The journal's hash chain is verified", "verified within {check_hours} hours", "PI1.4", "30.1.g"
    ),
    "backup": Control("Backups are recent", "at most {backup_hours} hours old", "A1.2"),
    "restore_test": Control("Restores are tested", "passed within {restore_test_days} days", "A1.3"),
}
"""All controls by ID."""


class ComplianceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thresholds of the compliance controls."""

    every_ms: Annotated[int, between(60_000, 7 * DAY_MS, "Time between two evaluations for the journal.")] = DAY_MS
    encryption_required: Annotated[bool, about("Fail tenants without encryption.")] = True
    key_rotation_days: Annotated[_Days, about("Maximum age of the data key in use.")] = 365
    key_unused_days: Annotated[_Days, about("Maximum time since the last use of an API key.")] = 90
    grant_review_days: Annotated[_Days, about("Maximum time since a grant was created or reviewed.")] = 90
    check_hours: Annotated[int, between(1, 8_760, "Maximum time since the last self-check.")] = 24
    backup_hours: Annotated[int, between(1, 8_760, "Maximum age of the newest backup.")] = 24
    restore_test_days: Annotated[_Days, about("Maximum time since the last successful restore test.")] = 90
    alert_hours: Annotated[int, between(1, 8_760, "Maximum duration of an alert that is not silenced.")] = 24

    def threshold_of(self, control: str) -> str:
        """Return the threshold of a control in words."""
        scope = "for all tenants" if self.encryption_required else "if enabled"
        return CONTROLS[control].threshold.format(**msgspec.structs.asdict(self), encryption_scope=scope)
