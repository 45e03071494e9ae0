"""The client, for ordinary blocking code: a thin hop into the same core."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Literal, Self

from tenantq.client.async_administered import AsyncPlatform
from tenantq.client.async_client import AsyncClient
from tenantq.client.async_fleet import AsyncFleet
from tenantq.client.async_message import AsyncMessage
from tenantq.client.async_queue import AsyncQueue
from tenantq.client.async_tenant import AsyncTenant
from tenantq.client.portal import Face, Portal, hop
from tenantq.client.received import Received
from tenantq.client.settings import URL_DEFAULT, Retries, Settings, Tls
from tenantq.errors import TenantqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
    from types import TracebackType

    from tenantq.client.values import Added, JobResult

log = logging.getLogger("tenantq.client")


class Message(Received, Face[AsyncMessage]):
    """A message under lease. Settle it with one of its methods, or do the work inside ``with message``.

    The block keeps the lease alive while it runs. It acks when it ends well, with ``message.result`` if that was set; it nacks with
    the exception's name and text when one leaves it, and the exception goes on. A block that is interrupted (KeyboardInterrupt)
    releases the message. A message that was settled inside the block is left alone.
    """

    def __init__(self, inner: AsyncMessage, portal: Portal, owner: object = None) -> None:
        Received.__init__(self, inner.held)
        Face.__init__(self, inner, portal, owner)

    ack = hop(AsyncMessage.ack)
    fail = hop(AsyncMessage.fail)
    nack = hop(AsyncMessage.nack)
    release = hop(AsyncMessage.release)
    extend = hop(AsyncMessage.extend)

    def __enter__(self) -> Self:
        self._portal.soon(self._inner.start_heartbeat)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._portal.run(self._inner.__aexit__(kind, error, trace))
        except TenantqError as trouble:
            if error is None:
                raise
            log.warning("%r could not be given back: %s", self, trouble)  # which does not hide the block's own error


class Queue(Face[AsyncQueue]):
    """One queue of one tenant. Times are milliseconds."""

    @property
    def name(self) -> str:
        """Its name."""
        return self._inner.name

    @property
    def tenant(self) -> str | None:
        """Its tenant; None: the credential's own."""
        return self._inner.tenant

    add = hop(AsyncQueue.add)
    result = hop(AsyncQueue.result)
    wait_result = hop(AsyncQueue.wait_result)
    peek = hop(AsyncQueue.peek)
    open_snapshot = hop(AsyncQueue.open_snapshot)
    read_snapshot = hop(AsyncQueue.read_snapshot)
    close_snapshot = hop(AsyncQueue.close_snapshot)
    get = hop(AsyncQueue.get)
    trace = hop(AsyncQueue.trace)
    stats = hop(AsyncQueue.stats)
    remove = hop(AsyncQueue.remove)
    purge = hop(AsyncQueue.purge)
    redrive = hop(AsyncQueue.redrive)
    redrive_status = hop(AsyncQueue.redrive_status)
    cancel_redrive = hop(AsyncQueue.cancel_redrive)
    configure = hop(AsyncQueue.configure)
    suspend = hop(AsyncQueue.suspend)
    reopen = hop(AsyncQueue.reopen)
    digest = hop(AsyncQueue.digest)
    pause = hop(AsyncQueue.pause)
    resume = hop(AsyncQueue.resume)
    delete = hop(AsyncQueue.delete)

    def add_many(
        self,
        messages: Iterable[object],
        *,
        priority: int = 0,
        delay_ms: int = 0,
        ttl_ms: int | None = None,
        group: str | None = None,
        attributes: dict[str, str] | None = None,
        max_attempts: int | None = None,
        errors: Literal["raise", "return"] = "raise",
    ) -> list[Added]:
        """Add any number of messages, in order; return what became of each, in the same order.

        Each is a body, or a ``NewMessage`` with options of its own. They go out in requests of at most 1,000 messages or 8 MiB, one
        after the other, and ``messages`` is iterated here, in the thread that calls. An error of one message does not keep the others
        out: with ``errors="raise"`` the first such error is raised after all were tried; with ``"return"`` it stands in its ``Added``.

        At a rate limit they wait as the server asks, as often as ``retries`` allows without any being added; those left then have the
        limit's error. What concerns neither a message nor a limit is raised at once, with a note on how many had been sent.
        """
        adds = self._inner.ordered_adds(
            priority=priority,
            delay_ms=delay_ms,
            ttl_ms=ttl_ms,
            group=group,
            attributes=attributes,
            max_attempts=max_attempts,
        )
        for batch in adds.batches(messages):
            self._portal.run(adds.send(batch))
        return adds.told(errors)

    def poll(
        self, max: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None, consumer: str | None = None
    ) -> list[Message]:
        """Lease up to ``max`` messages; with ``wait_ms`` wait for the first. ``lease_ms`` None: as the queue is configured."""
        poll = self._inner.poll(max, wait_ms=wait_ms, lease_ms=lease_ms, consumer=consumer)
        return [Message(one, self._portal, self._owner) for one in self._portal.run(poll)]

    def ack_many(
        self, messages: Iterable[Message], *, errors: Literal["raise", "return"] = "raise"
    ) -> list[TenantqError | None]:
        """Finish many messages of this queue, each with its ``result`` if that was set.

        Returns None for each that is done. With ``errors="raise"`` the first error is raised after all were tried; with
        ``"return"`` it stands in its place.
        """
        inner = [message._inner for message in messages]  # noqa: SLF001  # the other half of the same thing
        return self._portal.run(self._inner.ack_many(inner, errors=errors))

    def settle(
        self,
        how: Literal["ack", "nack", "release", "extend"],
        receipts: Iterable[str],
        *,
        delay_ms: int | None = None,
        reason: str = "",
        lease_ms: int | None = None,
    ) -> list[int | TenantqError | None]:
        """Settle leases by their receipts, for who kept those and not the messages.

        Returns for each None, the new end of its lease (``extend``), or its error. ``delay_ms`` and ``reason`` are for ``nack``,
        ``lease_ms`` is for ``extend``.
        """
        settle = self._inner.settle(how, list(receipts), delay_ms=delay_ms, reason=reason, lease_ms=lease_ms)
        return self._portal.run(settle)

    def iter_results(self, ids: Iterable[str], *, timeout_ms: int = 60_000) -> Iterator[JobResult]:
        """Yield the results of many messages as they are completed or failed, each once; ``timeout_ms`` is for all of them."""
        return self._iterated(self._inner.iter_results(list(ids), timeout_ms=timeout_ms))

    def _iterated(self, source: AsyncIterator[JobResult]) -> Iterator[JobResult]:
        yield from self._portal.iterate(source)  # and keeps its owner meanwhile


class Fleet(Face[AsyncFleet]):
    """One queue name in many tenants, for workers that serve them all in fair turns."""

    def poll(
        self, max: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None, consumer: str | None = None
    ) -> list[Message]:
        """Lease up to ``max`` messages, in weighted fair turns of the tenants this credential is granted in."""
        poll = self._inner.poll(max, wait_ms=wait_ms, lease_ms=lease_ms, consumer=consumer)
        return [Message(one, self._portal, self._owner) for one in self._portal.run(poll)]


class Tenant(Face[AsyncTenant]):
    """One tenant by name, where the credential is granted. Times are milliseconds."""

    @property
    def name(self) -> str:
        """Its name."""
        return self._inner.name

    def queue(self, name: str) -> Queue:
        """Return one of its queues; nothing is sent."""
        return Queue(self._inner.queue(name), self._portal, self._owner)

    get = hop(AsyncTenant.get)
    configure = hop(AsyncTenant.configure)
    suspend = hop(AsyncTenant.suspend)
    resume = hop(AsyncTenant.resume)
    hold = hop(AsyncTenant.hold)
    release_hold = hop(AsyncTenant.release_hold)
    delete = hop(AsyncTenant.delete)
    queues = hop(AsyncTenant.queues)
    export = hop(AsyncTenant.export)
    import_part = hop(AsyncTenant.import_part)
    usage = hop(AsyncTenant.usage)
    audit = hop(AsyncTenant.audit)
    encryption = hop(AsyncTenant.encryption)
    rotate_keys = hop(AsyncTenant.rotate_keys)
    rewrap_keys = hop(AsyncTenant.rewrap_keys)
    create_key = hop(AsyncTenant.create_key)
    keys = hop(AsyncTenant.keys)
    revoke_key = hop(AsyncTenant.revoke_key)
    grant = hop(AsyncTenant.grant)
    revoke_grant = hop(AsyncTenant.revoke_grant)
    grants = hop(AsyncTenant.grants)
    revoke_token = hop(AsyncTenant.revoke_token)


class Platform(Face[AsyncPlatform]):
    """The platform itself, for its administrators: its own keys, and the audit trail of everything."""

    audit = hop(AsyncPlatform.audit)
    create_key = hop(AsyncPlatform.create_key)
    keys = hop(AsyncPlatform.keys)
    revoke_key = hop(AsyncPlatform.revoke_key)


class Client(Face[AsyncClient]):
    """A connection to a tenantq server, for blocking code: ``with Client(url, token=...) as client``.

    Any number of threads may share it: that is when their calls go out together. It runs an event loop in a daemon thread of its own,
    so a client that was made before a fork is of no use in the child: make one in each process.

    ``timeout_ms`` is for an answer, once a connection is there; a call that waits at the server gets that on top. ``retries`` says how
    often, and with which pauses, a call is tried again where that is safe. ``tls`` is for ``https`` addresses.
    """

    def __init__(
        self,
        url: str = URL_DEFAULT,
        token: str | None = None,
        *,
        timeout_ms: int = 10_000,
        connect_timeout_ms: int = 5_000,
        retries: Retries | int = Retries(),  # noqa: B008  # frozen
        connections: int = 32,
        coalesce: bool = True,
        follow: bool = True,
        tls: Tls = Tls(),  # noqa: B008  # frozen
        settings: Settings | None = None,
    ) -> None:
        """Prepare a client; nothing is sent before the first call. ``settings``, of another client, replace everything else."""
        inner = AsyncClient(
            url,
            token,
            timeout_ms=timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            retries=retries,
            connections=connections,
            coalesce=coalesce,
            follow=follow,
            tls=tls,
            settings=settings,
        )
        super().__init__(inner, Portal.start())
        self._end = weakref.finalize(self, _end, inner, self._portal)

    @property
    def settings(self) -> Settings:
        """What it was made from."""
        return self._inner.settings

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connections and end the thread. Calls that are under way end with Closed."""
        self._end()

    # ---- where to go on; nothing is sent ----

    def queue(self, name: str) -> Queue:
        """Return a queue of the credential's own tenant."""
        return Queue(self._inner.queue(name), self._portal, self)

    def tenant(self, name: str) -> Tenant:
        """Return a tenant where the credential is granted."""
        return Tenant(self._inner.tenant(name), self._portal, self)

    def platform(self) -> Platform:
        """Return the platform itself."""
        return Platform(self._inner.platform(), self._portal, self)

    def fleet(self, queue: str, *, tenants: Sequence[str] | None = None) -> Fleet:
        """Return one queue name in many tenants; None: in all where the credential may poll it."""
        return Fleet(self._inner.fleet(queue, tenants=tenants), self._portal, self)

    # ---- calls ----

    queues = hop(AsyncClient.queues)
    own_tenant = hop(AsyncClient.own_tenant)
    tenants = hop(AsyncClient.tenants)
    health = hop(AsyncClient.health)
    metrics = hop(AsyncClient.metrics)
    topology = hop(AsyncClient.topology)
    create_backup = hop(AsyncClient.create_backup)
    backups = hop(AsyncClient.backups)
    erasures = hop(AsyncClient.erasures)


def _end(inner: AsyncClient, portal: Portal) -> None:
    """Close a client that is no longer wanted, or that was forgotten."""
    if portal.refusal() is None:
        portal.run(inner.close())
    portal.stop()
