"""Errors between shards: an error that one shard raises is raised again, with all its fields, on the shard that called it."""

from typing import Any, Final

from tenantq import errors
from tenantq.errors import ShardDown, TenantqError


class NotOwner(ShardDown):
    """The shard is moving to another server. Try again later."""

    shard = -1
    owner = ""  # the member that has it now, if that is known
    epoch = -1  # the ownership that the caller knew when it called; -1: the newest


_CLASSES: Final[dict[str, type[TenantqError]]] = {
    name: kind
    for name, kind in (*vars(errors).items(), ("NotOwner", NotOwner))
    if isinstance(kind, type) and issubclass(kind, TenantqError)
}  # fmt: skip
_BY_CODE: Final = {kind.code: kind for kind in reversed(_CLASSES.values())}
"""The most general class of each code."""


def encode_error(error: TenantqError) -> list[Any]:
    """Return an error as plain values."""
    kind = next(kind for kind in type(error).__mro__ if kind.__name__ in _CLASSES)
    fields = {name: value for name, value in vars(error).items() if isinstance(value, str | int)}
    return [kind.__name__, error.message, fields]


def decode_error(encoded: list[Any]) -> TenantqError:
    """Return the error that ``encode_error`` was given."""
    name, message, fields = encoded
    kind = _CLASSES.get(name, TenantqError)
    error = kind(message)
    for field, value in fields.items():
        setattr(error, field, value)
    return error


def error_of_code(code: str, message: str) -> TenantqError:
    """Return an error of the most general class that has a code."""
    return _BY_CODE.get(code, TenantqError)(message)


def shard_down(number: int | str, region: str = "") -> ShardDown:
    """Return the error for work that belongs to a shard, or a server by its id, that does not run.

    ``region`` is the region of the shard if no server of that region is running.
    """
    if isinstance(number, str):
        return ShardDown("the connection to the server that has this shard was lost. Try again later.")
    if region:
        return ShardDown(
            f"no server of region {region} is running, and shard {number} is in that region. Start one first."
        )
    return ShardDown(f"shard {number} is not running. Its tenants are unavailable until it restarts. Try again later.")
