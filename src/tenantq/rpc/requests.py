"""Reads the arguments of the service from requests. The service checks ranges, names and sizes, for every transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tenantq.domain import limits
from tenantq.domain.message import NewMessage, Result, too_many_attributes, wrong_number
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.engine.ops.redrive import too_many_ids
from tenantq.engine.redrive_task import RedriveFilter
from tenantq.errors import Invalid, TenantqError
from tenantq.rpc.schema import camel_case
from tenantq.runtime.loop_slices import SLICE_BYTES, SLICE_ITEMS, next_slice
from tenantq.service.fleet_poll import wrong_tenants

DEFAULT_QUEUE: Final = "default"
_NOT_GIVEN: Final = -1
_LISTS: Final = frozenset(("receipts", "ids"))

_config_of = msgspec.json.Decoder(dict[str, Any]).decode


def _has(struct: Any, field: str) -> bool:
    """Return whether a client has set a text, list or struct."""
    return bool(struct._has(field))  # noqa: SLF001  # pycapnp's only name for it


def place(params: Any) -> dict[str, Any]:
    """Return the queue of a request: default/default without a ref, and the credential's own tenant without a tenant."""
    if not _has(params, "ref"):
        return {"tenant": DEFAULT_TENANT, "queue": DEFAULT_QUEUE}
    ref = params.ref
    return {"tenant": ref.tenant or None, "queue": ref.queue or DEFAULT_QUEUE}


def fields(*names: str) -> Callable[[Any], dict[str, Any]]:
    """Return a function that reads the queue and these fields of a request. A name with ``?`` is None if it was not given."""
    readers = [(name, camel_case(name)) for name in names]

    def read(params: Any) -> dict[str, Any]:
        return {**place(params), **{name.removesuffix("?"): _value(params, name, field) for name, field in readers}}

    return read


def _value(params: Any, name: str, field: str) -> Any:
    if name in _LISTS:
        return list(_batch(params, name))
    if name.endswith("?"):
        value = getattr(params, field[:-1])
        return None if value in {"", _NOT_GIVEN} else value
    return getattr(params, field)


def _given(number: int) -> int | None:
    return None if number == _NOT_GIVEN else number


def _bounded(given: Any, most: int, refusal: Callable[[int], Invalid]) -> Any:
    """Return a list of a request. Raises if it is too long: a few bytes on the wire can claim millions of items."""
    if len(given) > most:
        raise refusal(len(given))
    return given


def _batch(params: Any, field: str) -> Any:
    return _bounded(getattr(params, field), limits.BATCH_MESSAGES_MAX, lambda count: wrong_number(field, count))


# ---- messages ----


async def add(params: Any) -> dict[str, Any]:
    """Read messages to add, in slices. A malformed message is replaced by its error."""
    messages: list[NewMessage | TenantqError] = []
    is_plain = params.which() == "bodies"
    size = 0
    for given in _batch(params, "bodies" if is_plain else "messages"):
        if size >= SLICE_BYTES or (messages and len(messages) % SLICE_ITEMS == 0):
            size = 0
            await next_slice()
        one = NewMessage(body=given) if is_plain else _message(given)
        messages.append(one)
        size += len(one.body) if isinstance(one, NewMessage) else 0
    return {**place(params), "messages": messages, "key": params.key or None}


def add_bytes(arguments: dict[str, Any]) -> int:
    """Return about how much memory the messages of an add use."""
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
            attributes=_attributes(message.attributes) if _has(message, "attributes") else {},
            max_attempts=_given(message.maxAttempts),
        )
    except UnicodeDecodeError:
        return Invalid("the message contains text that is not UTF-8. Send other bytes in the body.")
    except TenantqError as error:
        return error


def _attributes(given: Any) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for one in _bounded(given, limits.ATTRIBUTES_MAX, lambda _: too_many_attributes()):
        name = one.name
        if name in attributes:
            raise Invalid(f"attributes: duplicate name {name[:80]!r}")
        attributes[name] = one.value
    return attributes


poll = fields("max", "wait_ms", "lease_ms?", "consumer?")
settle = fields("receipts")
nack = fields("receipts", "delay_ms?", "reason")
extend = fields("receipts", "lease_ms")
remove = fields("ids")
peek = fields("limit", "cursor?")
message = fields("id")
result = fields("id", "wait_ms")


def fleet_poll(params: Any) -> dict[str, Any]:
    """Read a poll of many tenants. Without a tenant in ``ref`` or ``tenants`` it covers all."""
    arguments = poll(params)
    tenant = arguments.pop("tenant")
    tenants = [tenant] if tenant is not None and _has(params, "ref") else None
    if _has(params, "tenants"):
        if tenants is not None:
            raise Invalid("tenants: give a tenant in ref, or tenants, not both")
        tenants = list(_bounded(params.tenants, limits.FLEET_TENANTS_MAX, lambda _: wrong_tenants()))
    return {**arguments, "tenants": tenants}


def ack(params: Any) -> dict[str, Any]:
    """Read receipts and results."""
    results = [_result(one) for one in _batch(params, "results")] if _has(params, "results") else None
    return {**settle(params), "results": results or None}


def ack_bytes(arguments: dict[str, Any]) -> int:
    """Return about how much memory the results of an ack use."""
    results = arguments["results"] or ()
    return sum(len(one.value) for one in results if one is not None and one.value is not None)


def _result(result: Any) -> Result | None:
    kind = result.which()
    if kind == "value":
        return Result("completed", result.value)
    if kind == "error":
        return Result("failed", None, result.error)
    return None


# ---- queues ----

purge = fields("confirm", "reason")
delete_queue = fields("confirm", "reason", "force")


def put_queue(params: Any) -> dict[str, Any]:
    """Read a queue's settings."""
    try:
        changes = _config_of(params.config or "{}")
    except msgspec.MsgspecError as error:
        raise Invalid(f"config: {error}") from error
    except RecursionError as error:
        raise Invalid("config: nested too deeply") from error
    return {**place(params), "changes": changes}


def list_queues(params: Any) -> dict[str, Any]:
    """Read which page of a tenant's queues to return."""
    return {"tenant": place(params)["tenant"], "after": params.cursor or None, "limit": params.limit}


def redrive(params: Any) -> dict[str, Any]:
    """Read which dead letters to move, and how fast."""
    ids = _bounded(params.ids, limits.REDRIVE_IDS_MAX, too_many_ids) if _has(params, "ids") else None
    wanted = RedriveFilter(
        source=params.source or None,
        reason=params.reason or None,
        ids=frozenset(ids) if ids is not None else None,
        limit=_given(params.limit),
    )
    return {**place(params), "filter": wanted, "rate": _given(params.rate), "dry_run": params.dryRun}


def redrive_task(params: Any) -> dict[str, Any]:
    """Read the ID of a redrive."""
    return {**place(params), "id": params.task}
