"""How many connections a server takes: no more than it may open beside the files of its store."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from tenantq.settings import OFF, ServerSettings

log = logging.getLogger("tenantq")

RESERVE: Final = 600
"""Files for the store, the journal's export and other servers, at most about; the store keeps 512 open. Of a small limit it is half."""


PLENTY: Final = 2_048
"""Connections that hardly anybody misses any beyond, who has not asked for them."""


def within_limit(settings: ServerSettings, limit: int) -> ServerSettings:
    """Return the settings with no more connections than ``limit`` leaves beside the store, and say so where it is fewer.

    A connection too many is refused; a file that the store cannot open would end the server. It is a warning where somebody wanted
    more, or few are left.
    """
    room = limit - min(RESERVE, limit // 2)
    http = settings.listener.connections_max
    rpc = 0 if settings.rpc == OFF else settings.rpc_listener.connections_max
    if http + rpc <= room:
        return settings
    fewer_http = max(1, room * http // (http + rpc))
    fewer_rpc = max(1, room - fewer_http)
    default = ServerSettings()
    was_set = settings.listener != default.listener or settings.rpc_listener != default.rpc_listener
    log.log(
        logging.WARNING if was_set or room < PLENTY else logging.DEBUG,
        "this process may have %s files open, so it takes fewer connections than set: raise the limit (ulimit -n, LimitNOFILE=)",
        limit,
        extra={"http": fewer_http, "rpc": fewer_rpc if rpc else OFF},
    )
    return msgspec.structs.replace(
        settings,
        listener=msgspec.structs.replace(settings.listener, connections_max=fewer_http),
        rpc_listener=msgspec.structs.replace(settings.rpc_listener, connections_max=fewer_rpc),
    )
