"""A connection to the Redis server that has the shard's slot, with retries.

Every command can be sent twice: reads change nothing, and a repeated commit is recognized. So every kind of failure (a reset, a
timeout, a server that is loading, a failover, a migrating slot) is handled the same way: find the owner of the slot and try again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.crc import key_slot
from redis.retry import Retry

from tenantq.errors import DiskFull, StoreFailed
from tenantq.runtime.histogram import Histogram
from tenantq.store.redis.address import RedisAddress

try:
    from redis.driver_info import DriverInfo
except ImportError:  # before redis-py 8
    _UNNAMED: dict[str, Any] = {"lib_name": None, "lib_version": None}
else:
    _UNNAMED = {"driver_info": DriverInfo(name=None, lib_version=None)}
"""Connections do not name their library: looking its version up takes longer than to connect."""

RedisNode = tuple[str, int]
RedisCommand = tuple[bytes | str | int, ...]
Ask = Callable[..., Any]  # sends one command to a server that is being checked

log = logging.getLogger("tenantq")

_PAUSE_S: Final = (0.02, 0.05, 0.1, 0.2)
"""Pauses between attempts; the last one repeats."""
ANSWER_S_MAX: Final = 5.0
_CONNECT_S: Final = 1.0
_FIND_S: Final = 1.0
"""How long a node may take to name the owner of a slot before another node is asked."""
_answering: dict[tuple[RedisNode, ...], RedisNode] = {}
"""By the nodes of an address: the one that answered last. New links ask it first, so that a node that hangs delays few of them."""
_TRANSIENT: Final = (
    exceptions.MovedError,
    exceptions.AskError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    exceptions.ReadOnlyError,
)
"""Temporary errors of a server that does not have the slot. Others are recognized by their first word."""
_TRANSIENT_WORDS: Final = ("MISCONF", "NOREPLICAS", "BUSY", "LOADING", "MASTERDOWN", "UNBLOCKED")
_REFUSED: Final = (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.NoPermissionError)


class Script:
    """A server-side function: its text, and its digest in Redis."""

    def __init__(self, name: str) -> None:
        self.text = Path(__file__).with_name(f"{name}.lua").read_bytes()
        self.digest = hashlib.sha1(self.text, usedforsecurity=False).hexdigest()

    def call(self, keys: Sequence[bytes], arguments: Sequence[bytes]) -> RedisCommand:
        """Return the command that runs it on a server that has loaded it."""
        return ("EVALSHA", self.digest, len(keys), *keys, *arguments)


class ServerCheck(Protocol):
    """Checks a server before it is used. Links that share a check follow each other to another primary."""

    server: bytes
    """The server that a link was last connected to."""

    def __call__(self, ask: Ask) -> bytes:
        """Return the id of the server. Raises ConnectionError if a retry may find a better one, else Invalid or StoreFailed."""
        ...


class SlotLink:
    """One connection. Other threads wait while one uses it."""

    def __init__(
        self,
        address: RedisAddress,
        slot_key: bytes,
        patience_ms: int,
        check: ServerCheck,
        answer_s: float = ANSWER_S_MAX,
    ) -> None:
        """Prepare a link; the first call connects. A connection without a reply for ``answer_s`` counts as dead."""
        self.address = address
        self._slot = key_slot(slot_key)
        self._patience_s = patience_ms / 1_000
        self.answer_s = min(ANSWER_S_MAX, max(0.25, self._patience_s / 3), answer_s)
        self._check = check
        self._lock = threading.RLock()
        self._connection: Any = None
        self._node: RedisNode | None = None  # the last known owner of the slot
        self._server = b""  # the id of that server
        self._seed: int | None = None  # the node to ask next
        self._closing = False
        self.took = Histogram()  # answered requests, each of one or more commands, with retries
        self.retries = 0
        self.connects = 0

    def close(self) -> None:
        """Close the connection. Calls that wait for a reply fail."""
        self._closing = True
        waiting = getattr(self._connection, "_sock", None)
        if waiting is not None:
            with contextlib.suppress(OSError):
                waiting.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._disconnect()

    @property
    def server_address(self) -> str:
        """The last known server of the slot."""
        host, port = self._node or (self.address.nodes[0] if self.address.nodes else ("a local socket", 0))
        return f"{host}:{port}" if port else host

    def look_again(self) -> None:
        """Check the server again, because its settings may have changed. Raises what the check raises."""
        with self._lock:
            if self._connection is None:
                return  # a new connection is checked anyway
            try:
                self._check(self._asker(self._connection))
            except (exceptions.RedisError, OSError):
                self._disconnect()
            except BaseException:
                self._disconnect()
                raise

    def call(self, *command: bytes | str | int) -> Any:
        """Send one command and return its reply. Raises StoreFailed after the patience."""
        return self.calls([command])[0]

    def run(self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes]) -> Any:
        """Run a server-side function and return its result."""
        return self.calls([script.call(keys, arguments)], scripts=(script,))[0]

    def calls(
        self,
        commands: Sequence[RedisCommand],
        *,
        scripts: Sequence[Script] = (),
        patience_s: float | None = None,
        bound: bool = False,
    ) -> list[Any]:
        """Send commands together and return their replies. ``scripts`` are loaded if the server does not have them.

        ``bound``: the reply to one is about the others, so all must come from one node.
        """
        started = time.monotonic()
        ends = started + (self._patience_s if patience_s is None else patience_s)
        tries, warned = 0, False
        with self._lock:
            while True:
                try:
                    answers = self._attempt(commands, scripts, bound=bound)
                except StoreFailed:  # all replies were read
                    raise
                except _REFUSED as error:
                    self._disconnect()
                    raise StoreFailed(
                        f"store {self.address}: access denied ({error}). Check user and password."
                    ) from error
                except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
                    self._disconnect()
                    self._node = None
                    trouble: Exception = error
                except _TransientError as transient:
                    trouble = transient.error
                except exceptions.RedisError as error:
                    self._disconnect()
                    raise StoreFailed(f"store {self.address}: {error}. Nothing of this round is confirmed.") from error
                except BaseException:
                    self._disconnect()  # an unread reply would be taken for the next one
                    raise
                else:
                    if warned:
                        log.info("the store responds again", extra={"store": str(self.address), "tries": tries + 1})
                    self.took.count(int((time.monotonic() - started) * 1_000_000))
                    return answers
                is_first_move = not tries and isinstance(trouble, exceptions.MovedError)
                if not is_first_move:  # else the new node is tried at once
                    if not warned:
                        warned = True
                        log.warning("the store cannot be used yet: %s", trouble, extra={"store": str(self.address)})
                    self._wait_or_give_up(trouble, tries, started, ends)
                tries += 1
                self.retries += 1

    def _wait_or_give_up(self, trouble: Exception, tries: int, started: float, ends: float) -> None:
        pause = _PAUSE_S[min(tries, len(_PAUSE_S) - 1)]
        now = time.monotonic()
        if now + pause >= ends or self._closing:
            text = str(trouble)
            kind = DiskFull if text.startswith("MISCONF") and "space" in text else StoreFailed
            raise kind(
                f"store {self.address}: {text} (retried for {now - started:.1f} s). Nothing of this round is confirmed."
            ) from trouble
        time.sleep(pause)

    # ---- one try ----

    def _attempt(self, commands: Sequence[RedisCommand], scripts: Sequence[Script], *, bound: bool) -> list[Any]:
        connection = self._connected()
        answers = self._exchange(connection, commands)
        if any(isinstance(one, exceptions.NoScriptError) for one in answers):
            self._exchange(connection, [("SCRIPT", "LOAD", script.text) for script in scripts])
            answers = self._exchange(connection, commands)
        asked = [number for number, one in enumerate(answers) if isinstance(one, exceptions.AskError)]
        if asked:  # keys that have not moved yet exist only on this node
            where, again = answers[asked[0]], range(len(commands)) if bound else asked
            for number, answer in zip(
                again, self._ask(where, [commands[number] for number in again], scripts), strict=True
            ):
                answers[number] = answer
        for answer in answers:
            if not isinstance(answer, Exception):
                continue
            if isinstance(answer, exceptions.MovedError):
                self._follow(answer)
            if isinstance(answer, exceptions.ReadOnlyError):  # a primary that has become a replica
                self._disconnect()
                self._node = None
            if isinstance(answer, _TRANSIENT) or str(answer).startswith(_TRANSIENT_WORDS):
                raise _TransientError(answer)
            if isinstance(answer, exceptions.ResponseError):
                raise StoreFailed(f"store {self.address}: {answer}. Nothing of this round is confirmed.")
            raise answer
        return answers

    def _exchange(self, connection: Any, commands: Sequence[RedisCommand]) -> list[Any]:
        connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        answers: list[Any] = []
        for _ in commands:
            try:
                answers.append(connection.read_response())
            except exceptions.ResponseError as error:
                answers.append(error)
        return answers

    def _ask(
        self, asked: exceptions.AskError, commands: Sequence[RedisCommand], scripts: Sequence[Script]
    ) -> list[Any]:
        """Send commands once to the node that the slot is migrating to."""
        node = (asked.host or (self._node or ("", 0))[0], asked.port)
        connection = self._make(node)
        try:
            connection.connect()
            self._check(self._asker(connection))
            self._exchange(connection, [("SCRIPT", "LOAD", script.text) for script in scripts])
            pairs: list[RedisCommand] = [one for command in commands for one in (("ASKING",), command)]
            return self._exchange(connection, pairs)[1::2]
        finally:
            connection.disconnect()

    def _asker(self, connection: Any) -> Ask:
        def ask(*command: bytes | str | int) -> Any:
            (answer,) = self._exchange(connection, [command])
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask

    # ---- the owner of the slot ----

    def _connected(self) -> Any:
        if self._connection is not None:
            if self._server == self._check.server:
                return self._connection
            self._disconnect()  # another link has found another primary
            self._node = None
        if self._closing:
            raise exceptions.ConnectionError("the link is closed")
        if self.address.cluster and self._node is None:
            self._node = self._find()
        node = self._node or (self.address.nodes[0] if self.address.nodes else ("", 0))
        connection = self._make(node)
        self._connection = connection
        self.connects += 1
        try:
            connection.connect()
            self._server = self._check.server = self._check(self._asker(connection))
        except BaseException:
            self._disconnect()
            raise
        return connection

    def _follow(self, moved: exceptions.MovedError) -> None:
        here = self._node or ("", 0)
        self._disconnect()
        self._node = (moved.host or here[0], moved.port)

    def _find(self) -> RedisNode:
        """Ask the nodes of the cluster, one after another, for the owner of the slot."""
        trouble: Exception = exceptions.ConnectionError("no node of the cluster knows the owner of the shard's slot")
        nodes = self.address.nodes
        if self._seed is None:
            self._seed = nodes.index(_answering.get(nodes, nodes[0]))
        for _ in nodes:
            seed = nodes[self._seed % len(nodes)]
            self._seed += 1  # a node that is cut off may name a replaced owner: ask another one next time
            connection = self._make(seed, _FIND_S)
            try:
                connection.connect()
                (ranges,) = self._exchange(connection, [("CLUSTER", "SLOTS")])
            except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
                trouble = error
                continue
            finally:
                connection.disconnect()
            _answering[nodes] = seed
            if isinstance(ranges, exceptions.ResponseError):
                raise StoreFailed(f"store {self.address}: {ranges}. Use redis:// for a server that is not a cluster.")
            for first, last, primary, *_ in ranges:
                if first <= self._slot <= last and primary[0] != b"?":  # the node does not know its own address
                    return ((primary[0] or b"").decode() or seed[0], primary[1])
        raise trouble

    def _make(self, node: RedisNode, answer_s: float | None = None) -> Any:
        address, answer_s = self.address, self.answer_s if answer_s is None else min(answer_s, self.answer_s)
        options: dict[str, Any] = {
            "username": address.username,
            "password": address.password,
            "socket_timeout": answer_s,
            "socket_connect_timeout": min(_CONNECT_S, answer_s),
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            **_UNNAMED,
        }
        if address.socket is not None:
            unix: Any = UnixDomainSocketConnection  # the library's classes have no types
            return unix(path=address.socket, db=address.db, **options)
        options |= {"host": node[0], "port": node[1], "db": address.db}
        if address.tls:
            return SSLConnection(ssl_ca_certs=address.ca_file, ssl_check_hostname=True, **options)
        plain: Any = Connection
        return plain(**options)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()


class _TransientError(Exception):
    """A temporary error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
