"""A network of several hosts on one machine: each is a network namespace behind one bridge, and pairs can be cut off.

It needs no firewall. A host that must not reach another gets a wrong link address for it, so its packets are lost as on a broken
cable: connections stay open and silent. Everything runs in its own namespace, so the machine's network is not touched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

NETWORK = "10.77.0."
NOWHERE = "02:00:00:00:00:99"
_INSIDE = "OWN_TEST_NETWORK"


def enter_own_network(module: str) -> bool:
    """Rerun this program in its own network namespace. Return False if the machine does not allow it."""
    if not os.environ.get(_INSIDE):
        _enter(module)
    return bool(os.environ.get(_INSIDE))


def _enter(module: str) -> None:
    wrap = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    script = "ip link set lo up && ip link add tqbr type bridge && ip link del tqbr"
    try:
        allowed = subprocess.run([*wrap, "sh", "-c", script], check=False, capture_output=True).returncode == 0
    except OSError:
        allowed = False
    if allowed:
        command = [*wrap, sys.executable, "-m", module, *sys.argv[1:]]
        os.execvpe(command[0], command, {**os.environ, _INSIDE: "1"})  # noqa: S606  # no shell is needed


class Host:
    """One host. ``prefix`` before a command runs it on the host."""

    def __init__(self, number: int) -> None:
        self.address = f"{NETWORK}{number}"
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        space = Path(f"/proc/{self._holder.pid}/ns/net")
        while space.readlink() == Path("/proc/self/ns/net").readlink():
            time.sleep(0.005)
        self.prefix = ("nsenter", f"--net={space}")
        outer = f"tq{number}"
        _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", str(self._holder.pid))
        _ip("link", "set", outer, "master", "tqbr", "up")
        self.ip("link", "set", "lo", "up")
        self.ip("addr", "add", f"{self.address}/24", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")

    def ip(self, *arguments: str) -> None:
        """Run ``ip`` on the host."""
        subprocess.run([*self.prefix, "ip", *arguments], check=True)

    def cut(self, other: Host) -> None:
        """Drop everything that this host sends to another."""
        self.ip("neigh", "replace", other.address, "lladdr", NOWHERE, "dev", "eth0", "nud", "permanent")

    def heal(self, other: Host) -> None:
        """Undo ``cut``."""
        self.ip("neigh", "del", other.address, "dev", "eth0")

    def close(self) -> None:
        """Remove the host."""
        self._holder.kill()
        self._holder.wait()


def open_network() -> None:
    """Create the bridge, with this process as host 1. Call it once, inside the namespace."""
    _ip("link", "set", "lo", "up")
    _ip("link", "add", "tqbr", "type", "bridge")
    _ip("addr", "add", f"{NETWORK}1/24", "dev", "tqbr")
    _ip("link", "set", "tqbr", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
