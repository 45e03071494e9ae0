"""Addresses to listen on: how they are reserved and shown, and the errors if they cannot be used."""

from __future__ import annotations

import errno
import os
import socket

import msgspec

from tenantq.errors import Unavailable
from tenantq.runtime.listener import open_socket, open_sockets
from tenantq.settings import split_address


class SharedAddress(msgspec.Struct, frozen=True):
    """An address on which several processes listen, each with its own socket. The system distributes connections among them."""

    family: int
    host: str
    port: int

    def open(self, *, listens: bool = True) -> socket.socket:
        """Return a socket at this address; one that does not listen reserves it. Raise OSError."""
        return open_socket(self.family, (self.host, self.port), is_shared=True, listens=listens)


def reserve(setting: str, address: str) -> tuple[list[SharedAddress], list[socket.socket]]:
    """Return the addresses of HOST:PORT, and sockets that reserve them while processes come and go. Raise OSError.

    It first checks that no other server listens there: shared sockets would share the address with that server, too.
    """
    found = open_sockets(*split_address(setting, address))
    addresses = [SharedAddress(sock.family, *sock.getsockname()[:2]) for sock in found]
    for sock in found:
        sock.close()
    return addresses, [address.open(listens=False) for address in addresses]


def port_of(sockets: list[socket.socket]) -> int:
    """Return the port of the first socket."""
    port: int = sockets[0].getsockname()[1]
    return port


def cannot_listen(error: OSError, setting: str, address: str) -> Unavailable:
    """Return the error for an address that cannot be used."""
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
