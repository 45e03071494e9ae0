"""Routes of other protocols over HTTP. Handlers get all headers and the raw body, and encode all replies themselves.

They have no action, so the listener refuses none of their requests early: the caller is known only once the signature has been
checked, and it covers the body.
"""

from collections.abc import Awaitable, Callable
from typing import Never

from tenantq.http.call_wait import CallWait
from tenantq.http.reply import Reply
from tenantq.http.request import Request
from tenantq.http.route import LIST_BODY_BYTES_MAX, Route

Serve = Callable[[Request, CallWait], Awaitable[Reply]]


class ProtocolRoute(Route):
    """A method and path of another protocol."""

    __slots__ = ("serve",)

    def __init__(self, method: str, path: str, serve: Serve) -> None:
        super().__init__(method, path, _no_handler, tag="foreign", scope="tenant", body_bytes_max=LIST_BODY_BYTES_MAX)
        self.serve = serve


async def _no_handler(_: object, __: object, ___: object) -> Never:
    raise AssertionError("protocol routes have no handler")
