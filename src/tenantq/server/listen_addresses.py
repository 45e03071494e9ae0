"""Addresses to listen on: how they are reserved and shown, and the errors if they cannot be used."""

import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TypeVar

import msgspec

from tenantq.errors import Invalid, TenantqError, Unavailable
from tenantq.runtime.listening_sockets import open_socket, open_sockets
from tenantq.settings import OFF, ServerSettings, split_address

log = logging.getLogger("tenantq")
T = TypeVar("T")


class SharedAddress(msgspec.Struct, frozen=True):
    """An address on which several processes listen, each with its own socket. The system distributes connections among them."""

    family: int
    host: str
    port: int

    def open(self, *, listens: bool = True) -> socket.socket:
        """Return a socket at this address; one that does not listen reserves it. Raise OSError."""
        return open_socket(self.family, (self.host, self.port), is_shared=True, listens=listens)


def opened(setting: str, address: str) -> list[socket.socket]:
    """Return listening sockets of HOST:PORT. Raises Unavailable."""
    try:
        return open_sockets(*split_address(setting, address))
    except OSError as error:
        raise _cannot_listen(error, setting, address) from error


def reserve(setting: str, address: str) -> tuple[list[SharedAddress], list[socket.socket]]:
    """Return the addresses of HOST:PORT, and sockets that reserve them while processes come and go. Raises Unavailable.

    It first checks that no other server listens there: shared sockets would share the address with that server, too.
    """
    found = opened(setting, address)
    addresses = [SharedAddress(sock.family, *sock.getsockname()[:2]) for sock in found]
    for sock in found:
        sock.close()
    try:
        return addresses, [one.open(listens=False) for one in addresses]
    except OSError as error:
        raise _cannot_listen(error, setting, address) from error


def open_rpc(
    settings: ServerSettings, default: str | None, open_at: Callable[[str, str], T]
) -> tuple[str, T] | tuple[None, None]:
    """Return the address of the Cap'n Proto listener and what ``open_at`` returns for it, or nothing if it is off.

    If the address is only the default and cannot be used, this is logged, and the server works without Cap'n Proto.
    """
    address = settings.rpc or default
    if address is None or address == OFF:
        return None, None
    try:
        if find_spec("capnp") is None:
            raise Invalid(
                "rpc: Cap'n Proto requires pycapnp: run pip install '.[rpc]' in the checkout, or set rpc = \"off\""
            )
        return address, open_at("rpc", address)
    except TenantqError as error:
        if settings.rpc is not None:
            raise
        level = logging.INFO if isinstance(error, Invalid) else logging.WARNING
        log.log(level, "no Cap'n Proto on %s. %s", address, error.message)
        return None, None


def port_of(sockets: Sequence[socket.socket]) -> int:
    """Return the port of the first socket."""
    port: int = sockets[0].getsockname()[1]
    return port


def _cannot_listen(error: OSError, setting: str, address: str) -> Unavailable:
    """Return the error for an address that cannot be used."""
    host, port = split_address(setting, address)
    if isinstance(error, socket.gaierror):
        return Unavailable(f"{setting}: unknown host {host} ({error.strerror}). Use an address of this machine.")
    return Unavailable(f"{setting}: cannot listen on {address}: {_why(error, port, setting)}")


def _why(error: OSError, port: int, setting: str) -> str:
    if error.errno == errno.EADDRINUSE:
        option = f"the setting {setting}" if "." in setting else f"--{setting}"  # sections have no options
        return f"another process listens there; stop it, or choose another port with {option}"
    if error.errno == errno.EACCES:
        return f"this user may not use port {port}; choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return "it is not an address of this machine"
    return os.strerror(error.errno) if error.errno else str(error)
