"""The schema, and the part of Cap'n Proto's own protocol that the listener also uses."""

from pathlib import Path
from typing import Any, Final

import capnp

PATH: Final = Path(__file__).with_name("tenantq.capnp")
SCHEMA: Final[Any] = capnp.load(str(PATH))
QUEUEBER: Final[Any] = capnp.load(str(PATH.with_name("queueber.capnp")))

_PYCAPNP: Final = Path(capnp.__file__).parent
_PROTOCOL: Final[Any] = capnp.load(str(_PYCAPNP / "rpc.capnp"), imports=[str(_PYCAPNP.parent)])


def camel_case(name: str) -> str:
    """Return the name of a field in the schema."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def abort_message(reason: str) -> bytes:
    """Return the protocol's message that aborts a connection with a reason."""
    message = _PROTOCOL.Message.new_message()
    message.init("abort").reason = reason
    data: bytes = message.to_bytes()
    return data
