"""From what a client sends to the arguments of the service. Ranges, names and sizes are checked there, for every transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tenantq.domain import limits
from tenantq.domain.message import NewMessage, Result, too_many_attributes, wrong_number
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.engine.ops.redrive import RedriveFilter, too_many_ids
from tenantq.errors import Invalid, TenantqError
from tenantq.service.fleet_poll import wrong_tenants

DEFAULT_QUEUE: Final = "default"
_NOT_GIVEN: Final = -1

_config_of = msgspec.json.Decoder(dict[str, Any]).decode


def _is_there(struct: Any, field: str) -> bool:
    """Tell whether a client has set a text, list or struct at all."""
    return bool(struct._has(field))  # noqa: SLF001  # pycapnp's only name for it


def place(params: Any) -> dict[str, Any]:
    """Return which queue a request is about: without a ref default/default, without a tenant the credential's own."""
    if not _is_there(params, "ref"):
        return {"tenant": DEFAULT_TENANT, "queue": DEFAULT_QUEUE}
    ref = params.ref
    return {"tenant": ref.tenant or None, "queue": ref.queue or DEFAULT_QUEUE}


def _given(number: int) -> int | None:
    return None if number == _NOT_GIVEN else number


def _bounded(given: Any, most: int, refusal: Callable[[int], Invalid]) -> Any:
    """Return a list of a request, unless it is longer than the service takes: a claim of millions may be few bytes on the wire."""
    if len(given) > most:
        raise refusal(len(given))
    return given


def _batch(params: Any, field: str) -> Any:
    return _bounded(getattr(params, field), limits.BATCH_MESSAGES_MAX, lambda count: wrong_number(field, count))


# ---- adding ----


def add(params: Any) -> dict[str, Any]:
    """Read messages to add; one that cannot be read keeps its place as an error."""
    messages: list[NewMessage | TenantqError]
    if params.which() == "bodies":
        messages = [NewMessage(body=body) for body in _batch(params, "bodies")]
    else:
        messages = [_message(message) for message in _batch(params, "messages")]
    return {**place(params), "messages": messages, "key": params.key or None}


def add_bytes(arguments: dict[str, Any]) -> int:
    """Return what the messages of an add hold in memory; about."""
    return sum(len(one.body) for one in arguments["messages"] if type(one) is NewMessage)


def _message(message: Any) -> NewMessage | TenantqError:
    try:
        return NewMessage(
            body=message.body,
            priority=message.priority,
            delay_ms=message.delayMs,
            ttl_ms=_given(message.ttlMs),
            key=message.key or None,
            group=message.group or None,
            attributes=_attributes(message.attributes) if _is_there(message, "attributes") else {},
            max_attempts=_given(message.maxAttempts),
        )
    except UnicodeDecodeError:
        return Invalid("a text of the message is not UTF-8; give other bytes in the body")
    except TenantqError as error:
        return error


def _attributes(given: Any) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for one in _bounded(given, limits.ATTRIBUTES_MAX, lambda _: too_many_attributes()):
        name = one.name
        if name in attributes:
            raise Invalid(f"attributes: {name[:80]!r} is given twice")
        attributes[name] = one.value
    return attributes


# ---- polling ----


def poll(params: Any) -> dict[str, Any]:
    """Read how many messages to lease, and for how long."""
    return {**place(params), **_lease(params)}


def fleet_poll(params: Any) -> dict[str, Any]:
    """Read a poll over many tenants."""
    queue, tenants = DEFAULT_QUEUE, None
    if _is_there(params, "tenants"):
        tenants = list(_bounded(params.tenants, limits.FLEET_TENANTS_MAX, lambda _: wrong_tenants()))
    if _is_there(params, "ref"):
        queue = params.ref.queue or DEFAULT_QUEUE
        if params.ref.tenant:
            if tenants is not None:
                raise Invalid("tenants: give a tenant in ref, or tenants, not both")
            tenants = [params.ref.tenant]
    return {"queue": queue, "tenants": tenants, **_lease(params)}


def _lease(params: Any) -> dict[str, Any]:
    return {
        "max": params.max,
        "wait_ms": params.waitMs,
        "lease_ms": _given(params.leaseMs),
        "consumer": params.consumer or None,
    }


# ---- settling ----


def settle(params: Any) -> dict[str, Any]:
    """Read receipts."""
    return {**place(params), "receipts": list(_batch(params, "receipts"))}


def ack(params: Any) -> dict[str, Any]:
    """Read receipts, and what came of the work."""
    results = [_result(one) for one in _batch(params, "results")] if _is_there(params, "results") else None
    return {**settle(params), "results": results or None}


def ack_bytes(arguments: dict[str, Any]) -> int:
    """Return what the results of an ack hold in memory; about."""
    results = arguments["results"] or ()
    return sum(len(one.value) for one in results if one is not None and one.value is not None)


def _result(result: Any) -> Result | None:
    kind = result.which()
    if kind == "value":
        return Result("completed", result.value)
    if kind == "error":
        return Result("failed", None, result.error)
    return None


def nack(params: Any) -> dict[str, Any]:
    """Read receipts, and why and for how long they are given back."""
    return {**settle(params), "delay_ms": _given(params.delayMs), "reason": params.reason}


def extend(params: Any) -> dict[str, Any]:
    """Read receipts and a lease."""
    return {**settle(params), "lease_ms": params.leaseMs}


def remove(params: Any) -> dict[str, Any]:
    """Read ids of messages."""
    return {**place(params), "ids": list(_batch(params, "ids"))}


# ---- looking ----


def peek(params: Any) -> dict[str, Any]:
    """Read which page to show."""
    return {**place(params), "limit": params.limit, "cursor": params.cursor or None}


def message(params: Any) -> dict[str, Any]:
    """Read which message is meant."""
    return {**place(params), "id": params.id}


def result(params: Any) -> dict[str, Any]:
    """Read whose result is meant, and how long to wait for it."""
    return {**message(params), "wait_ms": params.waitMs}


# ---- queues ----


def put_queue(params: Any) -> dict[str, Any]:
    """Read a queue's settings."""
    try:
        changes = _config_of(params.config or "{}")
    except msgspec.MsgspecError as error:
        raise Invalid(f"config: {error}") from error
    except RecursionError as error:
        raise Invalid("config: is nested too deeply") from error
    return {**place(params), "changes": changes}


def list_queues(params: Any) -> dict[str, Any]:
    """Read which page of a tenant's queues to show."""
    return {"tenant": place(params)["tenant"], "after": params.cursor or None, "limit": params.limit}


def purge(params: Any) -> dict[str, Any]:
    """Read a queue's name again, and why."""
    return {**place(params), "confirm": params.confirm, "reason": params.reason}


def delete_queue(params: Any) -> dict[str, Any]:
    """Read a queue's name again, why, and whether to wait."""
    return {**purge(params), "force": params.force}


def redrive(params: Any) -> dict[str, Any]:
    """Read which dead letters to send back, and how fast."""
    ids = _bounded(params.ids, limits.REDRIVE_IDS_MAX, too_many_ids) if _is_there(params, "ids") else None
    wanted = RedriveFilter(
        source=params.source or None,
        reason=params.reason or None,
        ids=frozenset(ids) if ids is not None else None,
        limit=_given(params.limit),
    )
    return {**place(params), "filter": wanted, "rate": _given(params.rate), "dry_run": params.dryRun}


def redrive_task(params: Any) -> dict[str, Any]:
    """Read which redrive is meant."""
    return {**place(params), "id": params.task}
