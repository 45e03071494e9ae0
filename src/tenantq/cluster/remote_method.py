"""Methods of shards that other processes can call.

How the arguments and the result of a method travel follows from its signature. The owner of the tenant authenticates, admits,
executes and journals a call as if it had arrived there.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Final, get_type_hints

import msgspec

from tenantq.cluster.link import PendingReply
from tenantq.cluster.value_codec import argument_builder, encode, result_decoder
from tenantq.domain.message import Delivery
from tenantq.service.call import Call
from tenantq.service.tenant_export import TenantExport

_decode_text: Final = msgspec.msgpack.Decoder(str).decode


class RemoteMethod:
    """One method that other processes can call."""

    def __init__(self, path: str, method: Callable[..., Any]) -> None:
        """Prepare the method ``path``, which has the signature of ``method``."""
        hints = get_type_hints(method, include_extras=True)
        signature = inspect.signature(method)
        signature = signature.replace(parameters=[one for one in signature.parameters.values() if one.name != "self"])
        self.path = path
        self.takes_call = "call" in signature.parameters
        self.parameters = [name for name in signature.parameters if name != "call"]
        self.waits = "wait_ms" in self.parameters
        self._is_stream = hints["return"] is TenantExport
        self.leases = hints["return"] in {list[Delivery], list[Delivery] | None}
        self._signature = signature
        self._builders = [argument_builder(hints[name]) for name in self.parameters]
        self._positional = [
            name for name in self.parameters if signature.parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY
        ]
        self._decode = _decode_text if self._is_stream else result_decoder(hints["return"])

    def encode(self, shard: int, call: Call | None, arguments: tuple[Any, ...], options: dict[str, Any]) -> bytes:
        """Return a call of this method of a shard as it travels."""
        given = (call, *arguments) if self.takes_call else arguments
        bound = self._signature.bind(*given, **options)
        bound.apply_defaults()
        sent = msgspec.structs.replace(call, connection=None) if call is not None else None
        return encode((shard, self.path, sent, [bound.arguments[name] for name in self.parameters]))

    def arguments(self, values: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return arguments that have travelled: those by position, and those by name."""
        arguments = [
            value if build is None else build(value) for build, value in zip(self._builders, values, strict=True)
        ]
        count = len(self._positional)
        return arguments[:count], dict(zip(self.parameters[count:], arguments[count:], strict=True))

    def result(self, reply: bytes, pending: PendingReply | None = None) -> Any:
        """Return the result that a reply carries; ``pending`` is what the parts of an export are pulled from."""
        found = self._decode(reply)
        return RemoteExport(found, pending) if self._is_stream and pending is not None else found


class RemoteExport:
    """An export that another process sends part by part. Always close it."""

    def __init__(self, tenant: str, pending: PendingReply) -> None:
        self.tenant = tenant
        self._pending = pending
        self._parts = pending.parts()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    async def aclose(self) -> None:
        """Stop the export."""
        self._pending.stop(is_gone=True)


def remote_methods(
    facets: Mapping[str, type], queries: Mapping[str, type], single: Mapping[str, Callable[..., Any]]
) -> dict[str, RemoteMethod]:
    """Return methods by path: of ``facets`` those with a call and those about one shard, of ``queries`` all, and ``single`` ones."""
    found = {
        path: method
        for path, method in _public(facets)
        if path.endswith("_local") or "call" in inspect.signature(method).parameters
    }
    found |= {**dict(_public(queries)), **single}
    return {path: RemoteMethod(path, method) for path, method in found.items()}


def _public(kinds: Mapping[str, type]) -> Iterator[tuple[str, Callable[..., Any]]]:
    for facet, kind in kinds.items():
        for name, method in vars(kind).items():
            if not name.startswith("_") and inspect.isfunction(method):
                yield f"{facet}.{name}", method
