"""The capabilities that clients hold: the bootstrap capability, where they log in, and sessions."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from tenantq.domain.access import Principal
from tenantq.errors import Unavailable
from tenantq.rpc import queueber
from tenantq.rpc.call import Answer, RunningCall
from tenantq.rpc.connection import RpcConnection
from tenantq.rpc.methods import METHODS, Method
from tenantq.rpc.schema import QUEUEBER, SCHEMA
from tenantq.service.call import Call
from tenantq.service.request_ids import user_agent_of
from tenantq.service.service import Service


class Session(SCHEMA.Session.Server):  # type: ignore[misc]  # pycapnp creates this class from the schema
    """The calls of a logged-in client. The credential is checked with every call."""

    def __init__(self, connection: RpcConnection, bearer: str | None, user_agent: str) -> None:
        self.connection = connection
        self.bearer = bearer
        self.user_agent = user_agent
        connection.logged_in(bearer)
        weakref.finalize(self, connection.logged_out).atexit = False


def _method_of_session(method: Method) -> Callable[[Session, Any], Answer]:
    def begin(self: Session, context: Any) -> Answer:
        return RunningCall(self.connection, method, context, self.bearer, self.user_agent).answer()

    return begin


for _name, _method in METHODS.items():
    setattr(Session, f"{_name}_context", _method_of_session(_method))


class Bootstrap(QUEUEBER.Bootstrap.Server):  # type: ignore[misc]  # as above
    """The bootstrap capability, which logs clients in. Queueber's clients call their methods on it."""

    def __init__(self, connection: RpcConnection) -> None:
        self._connection = connection

    def login_context(self, context: Any) -> Answer:
        """Log a client in."""
        bearer, user_agent = _text(context.params, "token") or None, _text(context.params, "agent")
        return RunningCall(self._connection, LOGIN, context, bearer, user_agent_of(user_agent.encode())).answer()


def _method_of_queueber(name: str) -> Callable[[Bootstrap, Any], Answer]:
    return lambda self, context: queueber.begin(self._connection, name, context)


for _name in queueber.METHODS:
    setattr(Bootstrap, f"{_name}_context", _method_of_queueber(_name))


def _text(params: Any, name: str) -> str:
    """Return a text of the request, empty if it is not UTF-8: reading the request then refuses it."""
    try:
        text: str = getattr(params, name)
    except Exception:  # noqa: BLE001  # RunningCall reads it again and reports the error
        return ""
    return text


def _read_login(params: Any) -> dict[str, Any]:
    return {"bearer": params.token or None, "user_agent": user_agent_of(params.agent.encode())}


async def _log_in(service: Service, call: Call, *, bearer: str | None, user_agent: str) -> tuple[Principal, Session]:
    connection = call.connection
    _check_room(connection)
    principal = await service.access.log_in(call)
    _check_room(connection)  # others may have logged in meanwhile
    return principal, Session(connection, bearer, user_agent)


def _check_room(connection: RpcConnection) -> None:
    if connection.sessions >= connection.context.settings.sessions_max:
        raise Unavailable("too many sessions on this connection. Release some, or open another connection.")


def _write_session(results: Any, answer: tuple[Principal, Session], _: RpcConnection) -> int:
    principal, session = answer
    results.ok = None
    results.session = session
    results.principal = principal.id
    results.tenant = principal.tenant or ""
    results.schemaVersion = SCHEMA.schemaVersion
    return 0


LOGIN: Final = Method(_read_login, _log_in, _write_session)
