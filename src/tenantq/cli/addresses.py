"""Addresses to listen on: kept, shown, and what is said where that cannot be."""

from __future__ import annotations

import errno
import os
import socket

import msgspec

from tenantq.errors import Unavailable
from tenantq.runtime.listener import open_socket, open_sockets
from tenantq.settings import ServerSettings, split_address


class Place(msgspec.Struct, frozen=True):
    """An address that several processes listen on, each with a socket of its own: the system deals connections out among them."""

    family: int
    host: str
    port: int

    def opened(self, *, listens: bool = True) -> socket.socket:
        """Return a socket there; one that does not listen keeps the address for the others. OSError."""
        return open_socket(self.family, (self.host, self.port), is_shared=True, listens=listens)


def reserve(setting: str, address: str) -> tuple[list[Place], list[socket.socket]]:
    """Return the places that HOST:PORT stands for, and what keeps them while whoever is to listen there comes and goes. OSError.

    Another server there is found out first: sockets that share an address would share it with that one's, too.
    """
    found = open_sockets(*split_address(setting, address))
    places = [Place(sock.family, *sock.getsockname()[:2]) for sock in found]
    for sock in found:
        sock.close()
    return places, [place.opened(listens=False) for place in places]


def port_of(sockets: list[socket.socket]) -> int:
    """Return the port that was taken."""
    port: int = sockets[0].getsockname()[1]
    return port


def shown_address(setting: str, address: str, port: int) -> str:
    """Return an address with the port that was taken."""
    host, _ = split_address(setting, address)
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def shown_url(settings: ServerSettings, port: int) -> str:
    """Return a server's address as clients write it."""
    scheme = "https" if settings.tls is not None else "http"
    return f"{scheme}://{shown_address('http', settings.http, port)}"


def cannot_listen(error: OSError, setting: str, address: str) -> Unavailable:
    """Return what is told where an address cannot be listened on."""
    host, port = split_address(setting, address)
    if isinstance(error, socket.gaierror):
        return Unavailable(
            f"{setting}: the host {host} is not known here ({error.strerror}); give an address of this machine"
        )
    return Unavailable(f"{setting}: cannot listen on {address}: {_why(error, port, setting)}")


def _why(error: OSError, port: int, setting: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"another process listens there; stop it, or choose another port with --{setting}"
    if error.errno == errno.EACCES:
        return f"this user may not use port {port}; choose one from 1024 on"
    if error.errno == errno.EADDRNOTAVAIL:
        return "that is no address of this machine"
    return os.strerror(error.errno) if error.errno else str(error)
