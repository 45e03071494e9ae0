"""The answer of another shard, on its way to the client who asked this one."""

from __future__ import annotations

from typing import Any

import msgspec


class PassedReply(msgspec.Struct, frozen=True):
    """The fields of the reply, as the other shard has written them."""

    fields: dict[str, Any]
