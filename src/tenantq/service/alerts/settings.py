"""Settings of alerts: thresholds of the platform, and targets."""

from typing import Annotated

import msgspec

from tenantq.domain.alert_rules import AlertRules
from tenantq.domain.limits import DAY_MS
from tenantq.domain.names import QueueName, TargetName, TenantName
from tenantq.domain.validation import about, between, items, matching, text
from tenantq.errors import Invalid

_Url = Annotated[str, matching("https?://[^\\s/?#]+[^\\s]*", "an http or https URL")]
_EmailAddress = Annotated[str, matching("[^\\s@]+@[^\\s@]+", "an e-mail address")]
_FilePath = Annotated[str, text(4_096)]


class Webhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A target that gets each notification as an HTTP POST of JSON, signed as Standard Webhooks describes."""

    url: Annotated[_Url, about("Where to post.")]
    secret_file: Annotated[
        _FilePath,
        about(
            "File with the secret that signs. Use `whsec_` and base64, which libraries decode; other text is used as is."
        ),
    ]


class Email(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A target that gets each notification as an e-mail."""

    host: Annotated[str, text(255, "SMTP server.")]
    port: Annotated[int, between(1, 65_535, "Port of the SMTP server.")] = 587
    starttls: Annotated[bool, about("Encrypt the connection. Off only for a server on this machine.")] = True
    sender: Annotated[_EmailAddress, about("Address in From.")]
    recipients: Annotated[tuple[_EmailAddress, ...], items(1, 50, "Addresses in To.")]
    user: Annotated[str, text(255, "User to log in as; none: no login.")] | None = None
    password_file: Annotated[_FilePath, about("File with the password of the user.")] | None = None

    def __post_init__(self) -> None:
        """Refuse a user without a password."""
        if (self.user is None) != (self.password_file is None):
            raise Invalid("user, password_file: give both or neither")


class AlertQueue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A target that gets each notification as a message in a queue of a tenantq server."""

    url: Annotated[_Url, about("URL of the server.")]
    token_file: Annotated[_FilePath, about("File with an API key that may add.")]
    tenant: Annotated[TenantName, about("Tenant of the queue; none: the key's.")] | None = None
    queue: Annotated[QueueName, about("Queue to add to.")]


class AlertSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thresholds that the server watches, and targets that it notifies."""

    every_ms: Annotated[int, between(1_000, 3_600_000, "Time between two evaluations.")] = 10_000
    repeat_ms: Annotated[int, between(0, 30 * DAY_MS, "Time after which an active alert is sent again; 0: never.")] = (
        4 * 3_600_000
    )
    journal_lag_records: (
        Annotated[int, between(1, 1 << 53, "Journal records that wait for export; none: no alert.")] | None
    ) = None
    tenants: AlertRules = AlertRules()
    targets: Annotated[tuple[TargetName, ...], items(0, 16, "Targets to notify unless a tenant names its own.")] = ()
    webhooks: Annotated[dict[TargetName, Webhook], about("Webhook targets by name.")] = {}
    emails: Annotated[dict[TargetName, Email], about("E-mail targets by name.")] = {}
    queues: Annotated[dict[TargetName, AlertQueue], about("Queue targets by name.")] = {}

    def __post_init__(self) -> None:
        """Refuse unknown and ambiguous targets."""
        names = [*self.webhooks, *self.emails, *self.queues]
        for name in names:
            if names.count(name) > 1:
                raise Invalid(f"webhooks, emails, queues: two targets are called {name!r}")
        for name in (*self.targets, *self.tenants.targets):
            if name not in names:
                raise Invalid(f"targets: unknown target ({name!r}, allowed: {', '.join(sorted(names)) or 'none'})")
