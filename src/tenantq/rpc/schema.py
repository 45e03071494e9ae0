"""The schema, as it is shipped, and what of Cap'n Proto's own is needed beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import capnp

PATH: Final = Path(__file__).with_name("tenantq.capnp")
SCHEMA: Final[Any] = capnp.load(str(PATH))

_PYCAPNP: Final = Path(capnp.__file__).parent
_PROTOCOL: Final[Any] = capnp.load(str(_PYCAPNP / "rpc.capnp"), imports=[str(_PYCAPNP.parent)])


def abort_message(reason: str) -> bytes:
    """Return the message that ends a connection and says why, as any implementation of the protocol reads it."""
    message = _PROTOCOL.Message.new_message()
    message.init("abort").reason = reason
    data: bytes = message.to_bytes()
    return data
