"""Settings of tenants and queues."""

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from tenantq.domain.alert_rules import AlertRules
from tenantq.domain.limits import (
    ATTRIBUTES_MAX,
    DAY_MS,
    ENCRYPTION_KEY_CHARS_MAX,
    WEIGHT_MAX,
    Attempts,
    AttributeName,
    DelayMs,
    LeaseMs,
    OptionalReason,
    RotationMs,
    TtlMs,
)
from tenantq.domain.names import PlanName, QueueName, RegionName
from tenantq.domain.quotas import NO_QUOTAS, Quotas
from tenantq.domain.rates import NO_LIMITS, Concurrency, Limits
from tenantq.domain.validation import about, all_fields, between, build, items, text
from tenantq.errors import Invalid

SQS_MESSAGE_BYTES_MAX: Final = 1 << 20
_SQS_TEXT_CHARS_MAX: Final = 32 << 10
_SQS_TIME_MAX: Final = 1 << 40
_S = TypeVar("_S", bound=msgspec.Struct)
_TagName = Annotated[str, text(128)]
_TagValue = Annotated[str, text(256, chars_min=0)]


class SqsQueue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Attributes of a queue that only clients of Amazon SQS see. Times are in seconds, as in SQS."""

    delay_s: Annotated[int, between(0, 900, "Delay of messages that name none.")] = 0
    wait_s: Annotated[int, between(0, 20, "Wait of receives that name none.")] = 0
    message_bytes_max: Annotated[int, between(1_024, SQS_MESSAGE_BYTES_MAX, "Largest message.")] = SQS_MESSAGE_BYTES_MAX
    visible_at_once: Annotated[bool, about("Visibility timeout of 0, which no lease can have.")] = False
    content_based_deduplication: Annotated[bool, about("Deduplicate by a hash of the body.")] = False
    deduplication_scope: Annotated[Literal["queue", "messageGroup"], about("Scope of deduplication.")] = "queue"
    throughput_limit: Annotated[Literal["perQueue", "perMessageGroupId"], about("Stored, not enforced.")] = "perQueue"
    policy: Annotated[str, items(0, _SQS_TEXT_CHARS_MAX, "Stored, not enforced.")] = ""
    redrive_allow_policy: Annotated[str, items(0, _SQS_TEXT_CHARS_MAX, "Who may use it as a dead-letter queue.")] = ""
    kms_key: Annotated[str, items(0, _SQS_TEXT_CHARS_MAX, "Stored, not used.")] = ""
    kms_reuse_s: Annotated[int, between(60, 86_400, "Stored, not used.")] = 300
    managed_sse: Annotated[bool, about("Stored, not used.")] = True
    created_at: Annotated[int, between(0, _SQS_TIME_MAX, "When SQS clients created it.")] = 0
    modified_at: Annotated[int, between(0, _SQS_TIME_MAX, "When SQS clients last changed it.")] = 0


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Settings of one queue."""

    lease_ms: Annotated[LeaseMs, about("Lease of polls that name none.")] = 30_000
    max_attempts: Annotated[Attempts, about("Deliveries before a message becomes a dead letter; 0: no limit.")] = 5
    ttl_ms: Annotated[TtlMs, about("Time to live of messages that name none. Default: forever.")] | None = None
    dead_letter: Annotated[QueueName, about("Dead-letter queue. Default: the queue's name with -dlq.")] | None = None
    dead_on_poll: Annotated[bool, about("Keep a message out of attempts in place until a poll reaches it.")] = False
    backoff_base_ms: Annotated[
        DelayMs, about("A nack without a delay waits a random part of this, doubled with every attempt.")
    ] = 1_000
    backoff_max_ms: Annotated[DelayMs, about("Longest backoff.")] = 600_000
    dedup_ms: Annotated[TtlMs, about("How long an idempotency key is remembered.")] = 3_600_000
    result_ttl_ms: Annotated[TtlMs, about("How long a result can be read.")] = 3_600_000
    low_priority_every: Annotated[
        int, between(2, 1_000, "One delivery in this many goes to a lower priority that has waited long enough.")
    ] = 16
    low_priority_after_ms: Annotated[DelayMs, about("How long a lower priority must have waited for that.")] = 1_000
    limits: Limits = NO_LIMITS
    tags: Annotated[dict[_TagName, _TagValue], items(0, 50, "Free labels.")] = {}  # msgspec copies it
    sqs: SqsQueue | None = None


class Encryption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Encryption at rest of a tenant's messages."""

    enabled: Annotated[bool, about("Encrypt new data. Encrypted data stays readable when this is off.")] = False
    key: (
        Annotated[
            str,
            msgspec.Meta(
                pattern="^(local|aws-kms|gcp-kms|azure-kv):.",
                max_length=ENCRYPTION_KEY_CHARS_MAX,
                description="Key that wraps the data keys, as provider:key. Default: the server's default.",
                extra={"allowed": "provider:key with provider local, aws-kms, gcp-kms or azure-kv"},
            ),
        ]
        | None
    ) = None
    rotate_every_ms: Annotated[RotationMs, about("Age at which a new data key replaces the newest.")] = 30 * DAY_MS
    secret_attributes: Annotated[
        tuple[AttributeName, ...],
        items(0, ATTRIBUTES_MAX, "Names of attributes to encrypt, with * and ? as wildcards."),
    ] = ("secret_*",)
    plain_reasons: Annotated[bool, about("Store the reason of a nack in plain text; off: a one-word label.")] = False


class TenantConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Settings of one tenant."""

    plan: Annotated[PlanName, about("Plan that the tenant got last; none: its values were set one by one.")] | None = (
        None
    )
    weight: Annotated[int, between(1, WEIGHT_MAX, "Share of every round compared with other tenants.")] = 1
    create_queues: Annotated[bool, about("Create a queue with its first message.")] = True
    regions: Annotated[tuple[RegionName, ...], items(0, 32, "Where the tenant may be served. Default: anywhere.")] = ()
    quotas: Quotas = NO_QUOTAS
    limits: Limits = NO_LIMITS
    concurrency: Concurrency = Concurrency()
    encryption: Encryption = Encryption()
    alerts: AlertRules = AlertRules()
    defaults: QueueConfig = QueueConfig()

    def __post_init__(self) -> None:
        """Refuse a dead-letter queue in the defaults of queues."""
        if self.defaults.dead_letter is not None:
            raise Invalid("defaults.dead_letter: cannot be the same for all queues; set it per queue")


class TenantChanges(TenantConfig, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Settings of a tenant to change, and why."""

    reason: Annotated[OptionalReason, about("Why the settings change, for the audit trail.")] = ""


def change_config(config: _S, changes: dict[str, Any]) -> _S:
    """Return the settings of a tenant or queue with ``changes``. Raises Invalid naming the field, value and range.

    In a group of settings (quotas, limits, ...) only the given ones change. None removes a limit.
    """
    try:
        merged = msgspec.to_builtins(_merged(config, changes))
    except (TypeError, OverflowError) as error:  # what could not be stored, such as a subclass of str
        raise Invalid(f"settings: {error}") from error
    return build(type(config), merged)


def _merged(current: object, given: Any) -> Any:
    """Return all settings of ``current`` as plain data, with those of ``given`` in their place."""
    if isinstance(given, msgspec.Struct):
        return all_fields(given)
    if not isinstance(current, msgspec.Struct) or not isinstance(given, dict):
        return given
    changed = {name: _merged(getattr(current, str(name), None), one) for name, one in given.items()}
    return all_fields(current) | changed
