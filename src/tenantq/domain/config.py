"""What can be set per tenant and per queue, with ranges; and the settings of a shard."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, TypeVar

import msgspec

from tenantq.domain import limits
from tenantq.domain.message import check_int, check_text
from tenantq.domain.names import check_queue_name, check_shard_name
from tenantq.domain.quotas import NO_QUOTAS, Quotas, check_quotas
from tenantq.domain.rates import NO_LIMITS, Concurrency, Limits, check_concurrency, check_limits
from tenantq.domain.sqs_queue import SqsQueue, check_sqs_queue, check_tags
from tenantq.errors import Invalid

_REGION = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?")
_REGIONS_MAX: Final = 32
_S = TypeVar("_S", bound=msgspec.Struct)


class QueueConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one queue behaves."""

    lease_ms: int = 30_000  # where a poll names none
    max_attempts: int = 5  # deliveries before a message is a dead letter; 0: no bound
    ttl_ms: int | None = None  # where a message names none
    dead_letter: str | None = None  # None: <queue>-dlq
    dead_on_poll: bool = False  # a message out of attempts waits in its place until a poll comes upon it
    backoff_base_ms: int = 1_000  # a nack without delay waits a random part of base * 2^(attempt - 1) ...
    backoff_max_ms: int = 600_000  # ... up to this
    dedup_ms: int = 3_600_000  # how long an idempotency key is remembered
    result_ttl_ms: int = 3_600_000  # how long a result can be read
    low_priority_every: int = 16  # one delivery of so many goes to a lower priority that ...
    low_priority_after_ms: int = 1_000  # ... has waited at least this long
    limits: Limits = NO_LIMITS  # rates of this queue, inside its tenant's
    tags: dict[str, str] = {}  # for whoever looks after it
    sqs: SqsQueue | None = None  # what it has for clients of Amazon SQS alone


class Encryption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Whether and how a tenant's messages are encrypted at rest."""

    enabled: bool = False  # off: nothing more is encrypted; what was stays encrypted, and readable
    key: str | None = None  # what wraps its data keys, as provider:key; none: the server's default
    rotate_every_ms: int = 30 * 86_400_000  # a new data key is made when the newest is so old
    secret_attributes: tuple[str, ...] = ("secret_*",)  # names of attributes to encrypt, with * and ? as wildcards
    plain_reasons: bool = False  # on: the text that comes with a nack is kept, in plain; off: its first word


class TenantConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one tenant is served."""

    weight: int = 1  # its share of every round beside other tenants
    create_queues: bool = True  # a queue comes into being on its first message
    regions: tuple[str, ...] = ()  # where it may be served; none: anywhere
    quotas: Quotas = NO_QUOTAS
    limits: Limits = NO_LIMITS  # rates
    concurrency: Concurrency = Concurrency()
    encryption: Encryption = Encryption()
    defaults: QueueConfig = QueueConfig()  # what its new queues start from


_QUEUE_RANGES: dict[str, tuple[int, int]] = {
    "lease_ms": (1, limits.LEASE_MS_MAX),
    "max_attempts": (0, limits.ATTEMPTS_MAX),
    "ttl_ms": (1, limits.TTL_MS_MAX),
    "backoff_base_ms": (0, limits.DELAY_MS_MAX),
    "backoff_max_ms": (0, limits.DELAY_MS_MAX),
    "dedup_ms": (1, limits.TTL_MS_MAX),
    "result_ttl_ms": (1, limits.TTL_MS_MAX),
    "low_priority_every": (2, 1_000),
    "low_priority_after_ms": (0, limits.TTL_MS_MAX),
}


def change_tenant(config: TenantConfig, changes: dict[str, Any]) -> TenantConfig:
    """Return ``config`` with ``changes``, or raise Invalid naming the field, the value and the range.

    Of a group of settings (quotas, limits, ...) only what is given changes; None takes a limit away.
    """
    _check_known(changes, TenantConfig)
    changes = dict(changes)
    if "weight" in changes:
        check_int("weight", changes["weight"], 1, limits.WEIGHT_MAX)
    if "create_queues" in changes and type(changes["create_queues"]) is not bool:
        raise Invalid(f"create_queues: this {type(changes['create_queues']).__name__} is not true or false")
    if "regions" in changes:
        changes["regions"] = _checked_regions(changes["regions"])
    if "quotas" in changes:
        changes["quotas"] = check_quotas(_merged("quotas", config.quotas, changes["quotas"]))
    if "limits" in changes:
        changes["limits"] = check_limits(_merged("limits", config.limits, changes["limits"]))
    if "concurrency" in changes:
        changes["concurrency"] = check_concurrency(_merged("concurrency", config.concurrency, changes["concurrency"]))
    if "encryption" in changes:
        changes["encryption"] = check_encryption(_merged("encryption", config.encryption, changes["encryption"]))
    if "defaults" in changes:
        given = changes["defaults"]
        if not isinstance(given, dict | QueueConfig):
            raise Invalid(f"defaults: must be an object of queue settings, not {type(given).__name__}")
        given = given if isinstance(given, dict) else _fields(given)
        if given.get("dead_letter") is not None:
            raise Invalid("defaults.dead_letter: cannot be the same for all queues; set it queue by queue")
        changes["defaults"] = change_queue(config.defaults, given)
    return msgspec.structs.replace(config, **changes)


def change_queue(config: QueueConfig, changes: dict[str, Any]) -> QueueConfig:
    """Return ``config`` with ``changes``, or raise Invalid naming the field, the value and the range."""
    _check_known(changes, QueueConfig)
    for field, (low, high) in _QUEUE_RANGES.items():
        if field in changes and not (field == "ttl_ms" and changes[field] is None):
            check_int(field, changes[field], low, high)
    if changes.get("dead_letter") is not None:
        check_queue_name(changes["dead_letter"])
    if "dead_on_poll" in changes and type(changes["dead_on_poll"]) is not bool:
        raise Invalid(f"dead_on_poll: this {type(changes['dead_on_poll']).__name__} is not true or false")
    if "limits" in changes:
        changes = {**changes, "limits": check_limits(_merged("limits", config.limits, changes["limits"]))}
    if "tags" in changes:
        changes = {**changes, "tags": check_tags(changes["tags"])}
    if changes.get("sqs") is not None:
        changes = {**changes, "sqs": check_sqs_queue(_merged("sqs", config.sqs or SqsQueue(), changes["sqs"]))}
    return msgspec.structs.replace(config, **changes)


def check_encryption(encryption: Encryption) -> Encryption:
    """Return ``encryption`` if it is well formed, else raise Invalid. Whether its key can be used, the vault tells."""
    if encryption.key is not None:
        check_text("encryption.key", encryption.key, limits.ENCRYPTION_KEY_CHARS_MAX)
    check_int("encryption.rotate_every_ms", encryption.rotate_every_ms, 3_600_000, 3_660 * 86_400_000)
    if len(encryption.secret_attributes) > limits.ATTRIBUTES_MAX:
        raise Invalid(f"encryption.secret_attributes: at most {limits.ATTRIBUTES_MAX} patterns")
    for pattern in encryption.secret_attributes:
        check_text("encryption.secret_attributes: a pattern", pattern, limits.ATTRIBUTE_NAME_CHARS_MAX)
    return encryption


def _check_known(changes: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    known = kind.__struct_fields__
    for field in changes:
        if field not in known:
            raise Invalid(f"{str(field)[:80]}: no such setting; there are {', '.join(known)}")


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    return {field: getattr(struct, field) for field in struct.__struct_fields__}


def _merged(field: str, current: _S, given: object) -> _S:
    """Return ``current`` with the fields of ``given``, which is such a group of settings or a mapping of some of them."""
    if type(given) is type(current):
        return given
    if not isinstance(given, dict):
        raise Invalid(f"{field}: must be an object of settings, not {type(given).__name__}")
    merged = _fields(current)
    for name, value in given.items():
        if name not in merged:
            raise Invalid(f"{field}.{str(name)[:80]}: no such setting; there are {', '.join(merged)}")
        inner = merged[name]
        merged[name] = _merged(f"{field}.{name}", inner, value) if isinstance(inner, msgspec.Struct) else value
    try:
        return msgspec.convert(merged, type(current))
    except (msgspec.ValidationError, OverflowError) as error:
        raise Invalid(f"{field}: {error}") from error


def _checked_regions(given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or len(given) > _REGIONS_MAX:
        raise Invalid(f"regions: must be a list of at most {_REGIONS_MAX} names")
    for name in given:
        if type(name) is not str or _REGION.fullmatch(name) is None:
            raise Invalid("regions: a name is 1 to 32 characters of a-z, 0-9 and '-', alphanumeric at both ends")
    return tuple(given)


class ShardSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one shard process."""

    name: str | None = None  # what topologies call this shard; none: what its journal calls it
    address: str | None = None  # where clients reach it, as a topology has it; none: it is not told
    region: str | None = None  # where this shard is; a tenant that names regions is served only in one of them
    durability: Literal["fsync", "os"] = "fsync"  # "os": reply before the sync, which follows within sync_every_ms
    sync_every_ms: int = 100  # with durability "os" only
    round_cost_alone: int = 1_024  # most work in a round while one tenant has any (1 = a message of up to 4 KiB)
    round_cost_shared: int = 32  # the same while several tenants have work, or had in the last second
    round_ms: int = 2  # no operation is started in a round after this
    turn_cost: int = 4  # work a tenant may do before the next one's turn; while several share, one turn a round
    sweep_rows: int = 256  # most rows one slice of sweeping touches
    line_ops_max: int = 20_000  # operations of one tenant that may wait
    waiting_polls_max: int = 10_000  # long polls of one queue that may wait
    disk_reserve_bytes: int = 64 << 20  # refuse new messages below this much free space
    memory_bytes: int = 96 << 20  # block cache and write buffers together


_SHARD_RANGES: dict[str, tuple[int, int]] = {
    "sync_every_ms": (1, 60_000),
    "round_cost_alone": (1, 100_000),
    "round_cost_shared": (1, 100_000),
    "round_ms": (1, 10_000),
    "turn_cost": (1, 100_000),
    "sweep_rows": (2, 100_000),
    "line_ops_max": (1, 10_000_000),
    "waiting_polls_max": (1, 10_000_000),
    "disk_reserve_bytes": (0, 1 << 60),
    "memory_bytes": (8 << 20, 1 << 40),
}


def check_shard(settings: ShardSettings) -> ShardSettings:
    """Return ``settings`` if each is in its range, else raise Invalid."""
    if settings.durability not in ("fsync", "os"):
        raise Invalid(f"durability: {settings.durability!r} is not 'fsync' or 'os'")
    if settings.region is not None:
        _checked_regions([settings.region])
    if settings.name is not None:
        check_shard_name("name", settings.name)
    for field, (low, high) in _SHARD_RANGES.items():
        check_int(field, getattr(settings, field), low, high)
    return settings
