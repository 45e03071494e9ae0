"""This machine as the other members of a cluster see it: its ID, and its address."""

import hashlib
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tenantq.domain.urls import is_loopback

LOOPBACK: Final = "127.0.0.1"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NETWORK: Final = Path("/proc/self/ns/net")


def machine_id() -> str:
    """Return an ID that processes share if they reach each other over loopback; containers have networks of their own."""
    try:
        facts = f"{_BOOT_ID.read_text(encoding='ascii')} {_NETWORK.readlink()}"
    except OSError:
        facts = socket.gethostname()
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def address_towards(hosts: Iterable[tuple[str, int]]) -> str:
    """Return the local address of the route to the first host that is not on this machine; loopback if none is. Blocks."""
    for host, port in hosts:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        except OSError:
            continue
        for family, _, _, _, place in found:
            address = _route(family, place)
            if address is not None and not is_loopback(address):
                return address
    return LOOPBACK


def _route(family: int, place: tuple[object, ...]) -> str | None:
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(place)  # sends nothing
        except OSError:
            return None
        return str(sock.getsockname()[0])
