"""Calls of Queueber clients, which know no tenants, no login and no error replies.

They work in default/default with the rights of the connection: those of its certificate, or of an anonymous caller.
"""

from __future__ import annotations

from typing import Any, Final, Never

from tenantq.domain import limits
from tenantq.domain.message import AddResult, Delivery, NewMessage, Outcome, wrong_number
from tenantq.domain.names import DEFAULT_TENANT
from tenantq.errors import Invalid, LeaseLost, NotFound, TenantqError
from tenantq.rpc.call import Answer, RunningCall
from tenantq.rpc.connection import RpcConnection
from tenantq.rpc.methods import Method
from tenantq.rpc.queueber_leases import QueueberLeases
from tenantq.rpc.requests import DEFAULT_QUEUE, add_bytes
from tenantq.service.call import Call
from tenantq.service.problems import problem_of
from tenantq.service.service import Service

_PLACE: Final = (DEFAULT_TENANT, DEFAULT_QUEUE)


# ---- requests ----


def _read_add(params: Any) -> dict[str, Any]:
    items = params.req.items
    if len(items) > limits.BATCH_MESSAGES_MAX:
        raise wrong_number("items", len(items))
    return {"messages": [NewMessage(body=one.contents, delay_ms=one.visibilityTimeoutSecs * 1_000) for one in items]}


def _read_poll(params: Any) -> dict[str, Any]:
    req = params.req
    return {
        "max": min(req.numItems or 1, limits.BATCH_MESSAGES_MAX),
        "wait_ms": min(req.timeoutSecs * 1_000 or limits.WAIT_MS_MAX, limits.WAIT_MS_MAX),
        "lease_ms": _lease_ms(req),
    }


def _read_remove(params: Any) -> dict[str, Any]:
    return {"id": bytes(params.req.id), "lease": bytes(params.req.lease)}


def _read_extend(params: Any) -> dict[str, Any]:
    return {"lease": bytes(params.req.lease), "lease_ms": _lease_ms(params.req)}


def _lease_ms(req: Any) -> int:
    seconds: int = req.leaseValiditySecs
    most = limits.LEASE_MS_MAX // 1_000
    if not 1 <= seconds <= most:
        raise Invalid(f"leaseValiditySecs: out of range ({seconds}, allowed: 1 to {most})")
    return seconds * 1_000


# ---- the work ----


async def _add(service: Service, call: Call, *, messages: list[NewMessage | TenantqError]) -> list[AddResult]:
    return await service.messages.add(call, *_PLACE, messages)


async def _poll(service: Service, call: Call, **arguments: Any) -> list[Delivery]:
    return await service.messages.poll(call, *_PLACE, **arguments)


async def _remove(service: Service, call: Call, *, id: bytes, lease: bytes) -> bool:
    leases: QueueberLeases = call.connection.context.queueber_leases
    removed = _any_ok(await service.settlement.ack(call, *_PLACE, [leases.receipt(lease, id)]))
    leases.forget(lease, id)
    return removed


async def _extend(service: Service, call: Call, *, lease: bytes, lease_ms: int) -> bool:
    leases: QueueberLeases = call.connection.context.queueber_leases
    receipts = leases.receipts(lease)
    extended = _any_ok(await service.settlement.extend(call, *_PLACE, receipts, lease_ms=lease_ms))
    if not extended:
        leases.forget(lease)
    return extended


def _any_ok(outcomes: list[Outcome]) -> bool:
    """Return whether a lease still held something. Raises if an item was refused for another reason."""
    for one in outcomes:
        if one.error is not None and not isinstance(one.error, LeaseLost | NotFound | Invalid):
            raise one.error
    return any(one.ok for one in outcomes)


# ---- replies ----


def _write_added(results: Any, added: list[AddResult], _: RpcConnection) -> None:
    for one in added:
        if one.error is not None:
            raise one.error
    results.init("resp").ids = [one.raw_id for one in added]


def _write_polled(results: Any, deliveries: list[Delivery], connection: RpcConnection) -> int:
    resp = results.init("resp")
    for item, one in zip(resp.init("items", len(deliveries)), deliveries, strict=True):
        item.contents = one.body
        item.id = one.raw_id
    if deliveries:
        resp.lease = connection.context.queueber_leases.grant(deliveries)
    return sum(len(one.body) for one in deliveries)


def _write_removed(results: Any, removed: bool, _: RpcConnection) -> None:  # noqa: FBT001  # the reply itself
    results.init("resp").removed = removed


def _write_extended(results: Any, extended: bool, _: RpcConnection) -> None:  # noqa: FBT001  # the reply itself
    results.init("resp").extended = extended


METHODS: Final[dict[str, Method]] = {
    "add": Method(_read_add, _add, _write_added, add_bytes),
    "poll": Method(_read_poll, _poll, _write_polled, waits=True, interrupted=[]),
    "remove": Method(_read_remove, _remove, _write_removed),
    "extend": Method(_read_extend, _extend, _write_extended),
}


class QueueberCall(RunningCall):
    """A call whose request has no ID, and whose reply has no place for an error."""

    def _id_of(self, params: Any) -> str:  # noqa: ARG002  # there is none in it
        return ""

    async def _write_value(self, value: Any) -> int:
        self._connection.recognized()
        return await self._write_into(self._context.results, value)

    def _write_error(self, error: TenantqError) -> Never:
        problem = problem_of(error, self._request_id)
        raise _exception(problem.code, problem.detail) from None


def begin(connection: RpcConnection, name: str, context: Any) -> Answer:
    """Start a call of a Queueber client."""
    return QueueberCall(connection, METHODS[name], context, None, "queueber").answer()


def _exception(code: str, text: str) -> Exception:
    """Return an exception that pycapnp sends as ``CODE: TEXT``. It would also send the name of the class and the traceback."""
    kind: type[Exception] = type(code, (Exception,), {"__module__": "builtins", "__traceback__": None})
    return kind(text)
