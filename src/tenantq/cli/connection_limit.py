"""The number of connections that a server accepts, limited by the files that its process may open."""

import logging
from typing import Final

import msgspec

from tenantq.settings import OFF, ServerSettings

log = logging.getLogger("tenantq")

RESERVE: Final = 600
"""Files for the store, the export of the journal and other servers. The store keeps 512 open. At most half of the limit."""
PLENTY: Final = 2_048
"""Connections that are enough unless the settings ask for more."""


def within_limit(settings: ServerSettings, limit: int) -> ServerSettings:
    """Return the settings with no more connections than ``limit`` leaves after the reserve, and log a reduction.

    A surplus connection is refused, but a file that the store cannot open ends the server. The log line is a warning if the
    settings ask for more, or if few connections are left.
    """
    available = limit - min(RESERVE, limit // 2)
    http = settings.listener.connections_max
    rpc = 0 if settings.rpc == OFF else settings.rpc_listener.connections_max
    if http + rpc <= available:
        return settings
    fewer_http = max(1, available * http // (http + rpc))
    fewer_rpc = max(1, available - fewer_http)
    default = ServerSettings()
    was_set = settings.listener != default.listener or settings.rpc_listener != default.rpc_listener
    log.log(
        logging.WARNING if was_set or available < PLENTY else logging.DEBUG,
        "open-file limit is %s, which allows fewer connections than configured; raise it (ulimit -n, LimitNOFILE=)",
        limit,
        extra={"http": fewer_http, "rpc": fewer_rpc if rpc else OFF},
    )
    return msgspec.structs.replace(
        settings,
        listener=msgspec.structs.replace(settings.listener, connections_max=fewer_http),
        rpc_listener=msgspec.structs.replace(settings.rpc_listener, connections_max=fewer_rpc),
    )
