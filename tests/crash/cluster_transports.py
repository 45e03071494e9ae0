"""Clients of one queue over Amazon SQS and Cap'n Proto, as ``cluster_load`` uses them during a chaos run.

Like the SDK they know all servers, repeat what is safe to repeat, and use the next server when one does not answer.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import boto3
import capnp
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tenantq.client.problems import BY_CODE
from tenantq.client.settings import Retries
from tenantq.client.values import Added
from tenantq.errors import LeaseLost, Limited, TenantqError, Unavailable
from tenantq.runtime.randomness import system_randomness
from tests.contract.rpc.client import RpcClient
from tests.contract.sqs.sqs_server import REGION

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.crash.cluster_servers import Server

R = TypeVar("R")
RETRIES: Final = Retries(count=20, base_ms=50, max_ms=2_000)
TIMEOUT_S: Final = 2.5
CONNECT_S: Final = 1.0
GROUPS: Final = 16
"""Groups of a FIFO queue; each has one message in flight."""
CALLS_MAX: Final = 8
"""Threads of one SQS client, which blocks."""
_EXPIRED: Final = "The receipt handle has expired."
_NOT_CHANGED: Final = "Message does not exist or is not available"


class LeasedMessage(Protocol):
    """A message under lease."""

    @property
    def id(self) -> str:
        """The id of the message."""

    @property
    def text(self) -> str:
        """Its body."""

    async def ack(self) -> None:
        """Finish it."""

    async def nack(self, delay_ms: int | None = None) -> None:
        """Return it to the queue."""


class QueueClient(Protocol):
    """Adds and polls; the SDK's ``AsyncQueue`` is one."""

    async def add(self, body: str, *, key: str) -> Added:
        """Add a message, once per key."""

    async def poll(self, max: int, *, wait_ms: int, lease_ms: int) -> Sequence[LeasedMessage]:
        """Lease messages."""


class Leased:
    """See ``LeasedMessage``. ``settle`` acks or nacks it, given until when its lease cannot have ended."""

    def __init__(self, id: str, text: str, sure_until: float, settle: Callable[[str, float], Awaitable[None]]) -> None:
        self.id, self.text = id, text
        self._sure_until, self._settle = sure_until, settle

    async def ack(self) -> None:
        """Finish it. Raises LeaseLost."""
        await self._settle("ack", self._sure_until)

    async def nack(self, delay_ms: int | None = None) -> None:
        """Return it to the queue at once. Raises LeaseLost."""
        assert delay_ms == 0
        await self._settle("nack", self._sure_until)


class _Attempts:
    """Repeats a call, at another server if one does not answer, and remembers the server that did."""

    def __init__(self, servers: int, first: int) -> None:
        self._servers, self._server = servers, first % servers
        self._randomness = system_randomness()

    async def call(self, attempt: Callable[[int], Awaitable[R]], *, sure_until: float = 0.0) -> R | None:
        """Return what ``attempt``, given the number of a server, returns.

        Returns None for a lost lease that cannot have ended: an earlier attempt, whose reply was lost, has settled the message.
        """
        retry, is_doubtful = 0, False
        while True:
            try:
                return await attempt(self._server)
            except LeaseLost:
                if is_doubtful and time.monotonic() < sure_until:
                    return None
                raise
            except (Unavailable, Limited) as error:
                if isinstance(error, Unavailable):
                    is_doubtful = True
                    self._server = (self._server + 1) % self._servers
                retry += 1
                pause_ms = RETRIES.pause_ms(retry, error, self._randomness)
                if pause_ms is None:
                    raise
                await asyncio.sleep(pause_ms / 1_000)


class SqsQueueClient:
    """A FIFO queue over Amazon SQS, with boto3. Keys are remembered for five minutes."""

    def __init__(self, servers: Sequence[Server], first: int, key_id: str, secret: str, name: str) -> None:
        """Prepare. ``name`` ends in ``.fifo``."""
        self._name = name
        self._threads = ThreadPoolExecutor(CALLS_MAX, "sqs")
        self._attempts = _Attempts(len(servers), first)
        config = Config(
            retries={"total_max_attempts": 1},
            connect_timeout=CONNECT_S,
            read_timeout=TIMEOUT_S,
            max_pool_connections=CALLS_MAX,
        )
        self._clients = [
            boto3.client(
                "sqs", endpoint_url=server.url, region_name=REGION, aws_access_key_id=key_id,
                aws_secret_access_key=secret, config=config,
            )
            for server in servers
        ]  # fmt: skip
        self._url = ""

    async def create(self) -> None:
        """Create the queue."""
        made = await self._call("create_queue", QueueName=self._name, Attributes={"FifoQueue": "true"})
        self._url = made["QueueUrl"]

    async def add(self, body: str, *, key: str) -> Added:
        """Add a message, once per key."""
        group = str(zlib.crc32(key.encode()) % GROUPS)
        sent = await self._call(
            "send_message", MessageBody=body, MessageGroupId=group, MessageDeduplicationId=key.replace(" ", "-")
        )
        return Added(id=sent["MessageId"], duplicate=False)

    async def poll(self, max: int, *, wait_ms: int, lease_ms: int) -> list[Leased]:
        """Lease messages. The wait is rounded up to seconds."""
        sure_until = time.monotonic() + lease_ms / 1_000
        found = await self._call(
            "receive_message",
            MaxNumberOfMessages=max,
            WaitTimeSeconds=-(-wait_ms // 1_000),
            VisibilityTimeout=lease_ms // 1_000,
        )
        return [self._leased(one, sure_until) for one in found.get("Messages", [])]

    def _leased(self, one: dict[str, Any], sure_until: float) -> Leased:
        async def settle(kind: str, sure_until: float) -> None:
            action, options = ("delete_message", {}) if kind == "ack" else _TO_NACK
            await self._call(action, sure_until, ReceiptHandle=one["ReceiptHandle"], **options)

        return Leased(one["MessageId"], one["Body"], sure_until, settle)

    async def _call(self, action: str, sure_until: float = 0.0, **parameters: Any) -> Any:
        if self._url:
            parameters["QueueUrl"] = self._url

        async def attempt(server: int) -> Any:
            call = getattr(self._clients[server], action)
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: call(**parameters))
            except (BotoCoreError, ClientError) as error:
                raise _sqs_error(error) from error

        return await self._attempts.call(attempt, sure_until=sure_until)

    async def close(self) -> None:
        """Close all connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in self._clients:
            client.close()


_TO_NACK: Final[tuple[str, dict[str, Any]]] = ("change_message_visibility", {"VisibilityTimeout": 0})


def _sqs_error(error: BotoCoreError | ClientError) -> TenantqError:
    """Return an error of boto3 as the SDK would name it. What never reached a server counts as unavailable."""
    if not isinstance(error, ClientError):
        return Unavailable(str(error))
    text = str(error)
    if _EXPIRED in text or _NOT_CHANGED in text:
        return LeaseLost(text)
    is_retried = error.response["ResponseMetadata"]["HTTPStatusCode"] >= 500 or "Throttled" in text
    failure = (Unavailable if is_retried else TenantqError)(text)
    failure.code = error.response["Error"]["Code"]
    return failure


class RpcQueueClient:
    """A queue over Cap'n Proto, with one connection at a time. It needs KJ's event loop."""

    def __init__(self, servers: Sequence[Server], first: int, token: str, name: str) -> None:
        self._servers, self._token, self._name = servers, token, name
        self._attempts = _Attempts(len(servers), first)
        self._connections: dict[int, RpcClient] = {}
        self._connecting = asyncio.Lock()

    async def add(self, body: str, *, key: str) -> Added:
        """Add a message, once per key."""
        reply = await self._call("add", messages=[{"body": body.encode(), "key": key}])
        (one,) = reply.messages
        _check_item(one)
        return Added(id=one.id, duplicate=one.duplicate)

    async def poll(self, max: int, *, wait_ms: int, lease_ms: int) -> list[Leased]:
        """Lease messages."""
        sure_until = time.monotonic() + lease_ms / 1_000
        reply = await self._call("poll", max=max, waitMs=wait_ms, leaseMs=lease_ms)
        return [self._leased(one, sure_until) for one in reply.messages]

    def _leased(self, one: Any, sure_until: float) -> Leased:
        receipt = one.receipt

        async def settle(kind: str, sure_until: float) -> None:
            options = {"delayMs": 0} if kind == "nack" else {}
            await self._call(kind, sure_until, receipts=[receipt], **options)

        return Leased(one.id, bytes(one.body).decode(), sure_until, settle)

    async def _call(self, method: str, sure_until: float = 0.0, **given: Any) -> Any:
        async def attempt(server: int) -> Any:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    client = await self._connected(server)
                    reply = await client.ask(method, self._name, **given)
            except (OSError, TimeoutError, capnp.KjException) as error:
                self._disconnect(server)
                raise Unavailable(f"{method}: {error!r}") from error
            if reply.which() == "error":
                raise _rpc_error(reply.error)
            if reply.which() == "results":
                _check_item(reply.results[0])
            return reply

        return await self._attempts.call(attempt, sure_until=sure_until)

    async def _connected(self, server: int) -> RpcClient:
        async with self._connecting:
            if server not in self._connections:
                where = self._servers[server]
                async with asyncio.timeout(CONNECT_S):
                    client = await RpcClient.open(where.rpc_port, where.address)
                    try:
                        reply = await client.login(self._token)
                    except BaseException:
                        client.close()
                        raise
                if reply.which() == "error":
                    client.close()
                    raise _rpc_error(reply.error)
                self._connections[server] = client
            return self._connections[server]

    def _disconnect(self, server: int) -> None:
        if (client := self._connections.pop(server, None)) is not None:
            client.close()

    async def close(self) -> None:
        """Close all connections."""
        for server in list(self._connections):
            self._disconnect(server)


def _check_item(item: Any) -> None:
    if item.error.code:
        raise _rpc_error(item.error)


def _rpc_error(error: Any) -> TenantqError:
    return BY_CODE.get(error.code, TenantqError)(f"{error.code}: {error.message}")
