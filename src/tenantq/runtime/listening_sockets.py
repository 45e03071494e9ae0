"""Sockets that listen."""

import errno
import socket
from typing import Final

BACKLOG: Final = 1_024
"""Connections that wait to be accepted."""


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on every address of a host. Port 0 means any free port. Raises OSError.

    An address family that this machine lacks, such as IPv6 for ``localhost``, is skipped if another one works.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, place in dict.fromkeys((family, place) for family, _, _, _, place in found):
            try:
                opened.append(open_socket(family, place))
            except OSError as error:
                if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}:
                    raise
                missing = error
            if port == 0 and opened:
                break  # the next one would get another port
    except BaseException:
        for sock in opened:
            sock.close()
        raise
    if missing is not None and not opened:
        raise missing
    return opened


def open_socket(
    family: int, place: tuple[object, ...], *, is_shared: bool = False, listens: bool = True
) -> socket.socket:
    """Return a socket bound to one address. Several shared sockets can bind to it. Without ``listens`` it only reserves the address. Raises OSError."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(place)
        if listens:
            sock.listen(BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock
