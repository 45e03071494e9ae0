"""The client for blocking code: wraps the asynchronous client, which runs in its own thread."""

from __future__ import annotations

import logging
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from tenantq.client.async_admin import AsyncPlatform
from tenantq.client.async_client import AsyncClient
from tenantq.client.async_message import AsyncMessage
from tenantq.client.async_queue import AsyncFleet, AsyncQueue
from tenantq.client.async_tenant import AsyncGrants, AsyncKeyRotation, AsyncTenant
from tenantq.client.loop_thread import BlockingWrapper, LoopThread, blocking, blocking_part, like
from tenantq.client.received import Received
from tenantq.client.settings import Settings
from tenantq.client.values import Added, JobResult
from tenantq.errors import TenantqError

log = logging.getLogger("tenantq.client")


class Message(Received, BlockingWrapper[AsyncMessage]):
    """A message under lease. Settle it with one of its methods, or do the work inside ``with message``.

    The block keeps the lease alive while it runs. If it succeeds, the message is acked, with ``message.result`` if that was set. If
    it raises, the message is nacked with the exception's name and text, and the exception propagates. If it is interrupted
    (KeyboardInterrupt), the message is released. A message that was settled inside the block does not change.
    """

    def __init__(self, inner: AsyncMessage, loop_thread: LoopThread, owner: object = None) -> None:
        Received.__init__(self, inner.lease_state)
        BlockingWrapper.__init__(self, inner, loop_thread, owner)

    ack = blocking(AsyncMessage.ack)
    fail = blocking(AsyncMessage.fail)
    nack = blocking(AsyncMessage.nack)
    release = blocking(AsyncMessage.release)
    extend = blocking(AsyncMessage.extend)

    def __enter__(self) -> Self:
        self._loop_thread.soon(self._inner.start_heartbeat)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._loop_thread.run(self._inner.__aexit__(kind, error, trace))
        except TenantqError as trouble:
            if error is None:
                raise
            log.warning(
                "%r: cannot return the message to the queue: %s", self, trouble
            )  # the block's own error propagates


class Queue(BlockingWrapper[AsyncQueue]):
    """One queue of one tenant. Times are milliseconds."""

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._inner.name

    @property
    def tenant(self) -> str | None:
        """The queue's tenant; None: the credential's own."""
        return self._inner.tenant

    add = blocking(AsyncQueue.add)
    result = blocking(AsyncQueue.result)
    wait_result = blocking(AsyncQueue.wait_result)
    peek = blocking(AsyncQueue.peek)
    get = blocking(AsyncQueue.get)
    trace = blocking(AsyncQueue.trace)
    stats = blocking(AsyncQueue.stats)
    remove = blocking(AsyncQueue.remove)
    purge = blocking(AsyncQueue.purge)
    redrive = blocking(AsyncQueue.redrive)
    redrive_status = blocking(AsyncQueue.redrive_status)
    cancel_redrive = blocking(AsyncQueue.cancel_redrive)
    configure = blocking(AsyncQueue.configure)
    suspend = blocking(AsyncQueue.suspend)
    reopen = blocking(AsyncQueue.reopen)
    digest = blocking(AsyncQueue.digest)
    pause = blocking(AsyncQueue.pause)
    resume = blocking(AsyncQueue.resume)
    delete = blocking(AsyncQueue.delete)
    open_snapshot = blocking(AsyncQueue.open_snapshot)
    read_snapshot = blocking(AsyncQueue.read_snapshot)
    close_snapshot = blocking(AsyncQueue.close_snapshot)

    # Iterables are consumed in the calling thread: a generator may block, or call this client itself.

    @like(AsyncQueue.add_many)
    def add_many(
        self, messages: Iterable[object], *, errors: Literal["raise", "return"] = "raise", **options: Any
    ) -> list[Added]:
        """Add messages in order."""
        adds = self._inner.ordered_adds(**options)
        for batch in adds.batches(messages):
            self._loop_thread.run(adds.send(batch))
        return adds.results(errors)

    @like(AsyncQueue.poll)
    def poll(self, *args: Any, **options: Any) -> list[Message]:
        """Lease messages."""
        return _messages(self, self._inner.poll(*args, **options))

    def ack_many(
        self, messages: Iterable[Message], *, errors: Literal["raise", "return"] = "raise"
    ) -> list[TenantqError | None]:
        """Ack many messages of this queue, each with its ``result`` if one was set.

        Returns None for each acked message. With ``errors="raise"`` the first error is raised after all were tried; with
        ``"return"`` each error is returned at the position of its message.
        """
        inner = [message._inner for message in messages]  # noqa: SLF001  # the asynchronous half of the same message
        return self._loop_thread.run(self._inner.ack_many(inner, errors=errors))

    @like(AsyncQueue.settle)
    def settle(self, how: Any, receipts: Iterable[str], **options: Any) -> list[int | TenantqError | None]:
        """Settle leases by their receipts."""
        return self._loop_thread.run(self._inner.settle(how, list(receipts), **options))

    @like(AsyncQueue.iter_results)
    def iter_results(self, ids: Iterable[str], **options: Any) -> Iterator[JobResult]:
        """Yield results."""
        return self._iterate(self._inner.iter_results(list(ids), **options))

    def _iterate(self, source: AsyncIterator[JobResult]) -> Iterator[JobResult]:
        yield from self._loop_thread.iterate(source)  # this generator keeps the client alive


class Fleet(BlockingWrapper[AsyncFleet]):
    """One queue name in many tenants, for workers that serve all of them fairly."""

    @like(AsyncFleet.poll)
    def poll(self, *args: Any, **options: Any) -> list[Message]:
        """Lease messages."""
        return _messages(self, self._inner.poll(*args, **options))


def _messages(source: Queue | Fleet, poll: Coroutine[Any, Any, list[AsyncMessage]]) -> list[Message]:
    thread, owner = source._loop_thread, source._owner  # noqa: SLF001  # of this module
    return [Message(message, thread, owner) for message in thread.run(poll)]


class Tenant(BlockingWrapper[AsyncTenant]):
    """One tenant by name, where the credential is granted. Times are milliseconds."""

    @property
    def name(self) -> str:
        """The tenant's name."""
        return self._inner.name

    def queue(self, name: str) -> Queue:
        """Return one of its queues. Sends nothing."""
        return Queue(self._inner.queue(name), self._loop_thread, self._owner)

    get = blocking(AsyncTenant.get)
    configure = blocking(AsyncTenant.configure)
    suspend = blocking(AsyncTenant.suspend)
    resume = blocking(AsyncTenant.resume)
    hold = blocking(AsyncTenant.hold)
    release_hold = blocking(AsyncTenant.release_hold)
    delete = blocking(AsyncTenant.delete)
    queues = blocking(AsyncTenant.queues)
    export = blocking(AsyncTenant.export)
    import_part = blocking(AsyncTenant.import_part)
    workers = blocking(AsyncTenant.workers)
    metrics = blocking(AsyncTenant.metrics)
    usage = blocking(AsyncTenant.usage)
    alerts = blocking(AsyncTenant.alerts)
    compliance = blocking(AsyncTenant.compliance)
    apply_template = blocking(AsyncTenant.apply_template)
    residency = blocking(AsyncTenant.residency)
    encryption = blocking_part("key_rotation", AsyncKeyRotation.get)
    rotate_keys = blocking_part("key_rotation", AsyncKeyRotation.rotate)
    rewrap_keys = blocking_part("key_rotation", AsyncKeyRotation.rewrap)
    grants = blocking_part("access", AsyncGrants.list)
    grant = blocking_part("access", AsyncGrants.put)
    revoke_grant = blocking_part("access", AsyncGrants.delete)
    review_grant = blocking_part("access", AsyncGrants.review)
    revoke_token = blocking_part("access", AsyncGrants.revoke_token)
    audit = blocking(AsyncTenant.audit)
    create_key = blocking(AsyncTenant.create_key)
    keys = blocking(AsyncTenant.keys)
    revoke_key = blocking(AsyncTenant.revoke_key)
    templates = blocking(AsyncTenant.templates)
    put_template = blocking(AsyncTenant.put_template)
    delete_template = blocking(AsyncTenant.delete_template)


class Platform(BlockingWrapper[AsyncPlatform]):
    """The platform: its own API keys and the audit trail of all tenants, for its administrators."""

    audit = blocking(AsyncPlatform.audit)
    create_key = blocking(AsyncPlatform.create_key)
    keys = blocking(AsyncPlatform.keys)
    revoke_key = blocking(AsyncPlatform.revoke_key)
    templates = blocking(AsyncPlatform.templates)
    put_template = blocking(AsyncPlatform.put_template)
    delete_template = blocking(AsyncPlatform.delete_template)
    cluster = blocking(AsyncPlatform.cluster)
    drain_member = blocking(AsyncPlatform.drain_member)
    alerts = blocking(AsyncPlatform.alerts)
    compliance = blocking(AsyncPlatform.compliance)
    test_alert_target = blocking(AsyncPlatform.test_alert_target)
    containments = blocking(AsyncPlatform.containments)
    release_containment = blocking(AsyncPlatform.release_containment)
    signups = blocking(AsyncPlatform.signups)
    approve_signup = blocking(AsyncPlatform.approve_signup)
    reject_signup = blocking(AsyncPlatform.reject_signup)
    plans = blocking(AsyncPlatform.plans)
    placement = blocking(AsyncPlatform.placement)
    place_tenant = blocking(AsyncPlatform.place_tenant)
    grow_cluster = blocking(AsyncPlatform.grow_cluster)


class Client(BlockingWrapper[AsyncClient]):
    """A connection to a tenantq server, for blocking code: ``with Client(url, token=...) as client``.

    Any number of threads may share it: their concurrent calls are sent together. It runs an event loop in its own daemon thread,
    so a client that was created before a fork does not work in the child. Create one in each process.

    ``timeout_ms`` limits the time for a reply once connected; a call that waits at the server gets its wait on top. ``retries`` says
    how often, and with which delays, a call is retried where that is safe. ``tls`` is for ``https`` addresses.
    """

    @like(AsyncClient.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        inner = AsyncClient(*args, **options)
        super().__init__(inner, LoopThread.start())
        self._end = weakref.finalize(self, _end, inner, self._loop_thread)

    @property
    def settings(self) -> Settings:
        """The settings it was created with."""
        return self._inner.settings

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread. Calls in progress end with Closed."""
        self._end()

    # ---- resources; nothing is sent ----

    def queue(self, name: str) -> Queue:
        """Return a queue of the credential's own tenant."""
        return Queue(self._inner.queue(name), self._loop_thread, self)

    def tenant(self, name: str) -> Tenant:
        """Return a tenant where the credential is granted."""
        return Tenant(self._inner.tenant(name), self._loop_thread, self)

    def platform(self) -> Platform:
        """Return the platform: its own API keys and the audit trail of all tenants, for its administrators."""
        return Platform(self._inner.platform(), self._loop_thread, self)

    def fleet(self, queue: str, *, tenants: Sequence[str] | None = None) -> Fleet:
        """Return one queue name in many tenants; None: in all where the credential may poll it."""
        return Fleet(self._inner.fleet(queue, tenants=tenants), self._loop_thread, self)

    # ---- calls ----

    queues = blocking(AsyncClient.queues)
    whoami = blocking(AsyncClient.whoami)
    own_tenant = blocking(AsyncClient.own_tenant)
    tenants = blocking(AsyncClient.tenants)
    health = blocking(AsyncClient.health)
    metrics = blocking(AsyncClient.metrics)
    topology = blocking(AsyncClient.topology)
    create_backup = blocking(AsyncClient.create_backup)
    test_backup = blocking(AsyncClient.test_backup)
    backups = blocking(AsyncClient.backups)
    erasures = blocking(AsyncClient.erasures)


def _end(inner: AsyncClient, loop_thread: LoopThread) -> None:
    """Close a client, also one that was garbage-collected without being closed."""
    if loop_thread.refusal() is None:
        loop_thread.run(inner.close())
    loop_thread.stop()
