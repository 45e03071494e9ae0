"""A worker: tasks by decorator, run with bounded concurrency until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tenantq.client.async_client import AsyncClient
from tenantq.client.settings import URL_DEFAULT, Settings
from tenantq.client.sync_client import Client
from tenantq.domain import limits
from tenantq.domain.message import check_int
from tenantq.domain.names import check_queue_name, check_tenant_name
from tenantq.errors import Invalid
from tenantq.worker.plan import Plan
from tenantq.worker.run import WorkerRun
from tenantq.worker.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tenantq.client.values import Added
    from tenantq.worker.plan import After, Before, Failure
    from tenantq.worker.retry import Retry, Rule


P = ParamSpec("P")
R = TypeVar("R")

CONCURRENCY_MAX = 10_000
END_S = 0.25


class Worker:
    """Works on the messages of its tasks' queues.

        worker = Worker("http://127.0.0.1:7070", token="...")

        @worker.task("mail")
        def send(mail: dict) -> None: ...

        worker.run()

    ``concurrency`` handlers run at a time: coroutines on the event loop, ordinary functions in threads. As many messages again
    (``prefetch``) are held ready; where handlers take long, set it to 0 so that they wait at the server for any worker. Leases are kept
    alive as long as messages are held. With ``fleet`` each queue name is served in every tenant the credential is granted in, or in
    ``tenants``, in fair turns.

    ``before(message)``, ``after(message, result)`` and ``failure(message, error)`` are called around each handler; each may be a
    coroutine function, and each is also a decorator.
    """

    def __init__(
        self,
        client: str | Client | AsyncClient | Settings = URL_DEFAULT,
        token: str | None = None,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 10,
        prefetch: int | None = None,
        fleet: bool = False,
        tenants: Sequence[str] | None = None,
        lease_ms: int = 30_000,
        wait_ms: int = 20_000,
        drain_ms: int = 30_000,
        before: Iterable[Before] = (),
        after: Iterable[After] = (),
        failure: Iterable[Failure] = (),
    ) -> None:
        """Prepare a worker for a server's address, or for where a client leads; nothing is sent before it runs.

        ``queues`` limits it to some of its tasks; ``drain_ms`` is how long handlers may go on once it is told to stop.
        """
        if isinstance(client, Settings):
            self.settings = client
        else:
            self.settings = (AsyncClient(client, token) if isinstance(client, str) else client).settings
        check_int("concurrency", concurrency, 1, CONCURRENCY_MAX)
        check_int("prefetch", concurrency if prefetch is None else prefetch, 0, CONCURRENCY_MAX)
        check_int("lease_ms", lease_ms, 1_000, limits.LEASE_MS_MAX)
        check_int("wait_ms", wait_ms, 0, limits.WAIT_MS_MAX)
        check_int("drain_ms", drain_ms, 0, limits.TTL_MS_MAX)
        if tenants is not None and not fleet:
            raise Invalid("tenants: only a fleet serves several; say fleet=True")
        self.queues = None if queues is None else [check_queue_name(queue) for queue in queues]
        self.concurrency = concurrency
        self.prefetch = concurrency if prefetch is None else prefetch
        self.fleet = fleet
        self.tenants = None if tenants is None else [check_tenant_name(tenant) for tenant in tenants]
        self.lease_ms = lease_ms
        self.wait_ms = wait_ms
        self.drain_ms = drain_ms
        self.tasks: dict[str, Task[Any, Any]] = {}
        self._before: list[Before] = list(before)
        self._after: list[After] = list(after)
        self._failure: list[Failure] = list(failure)
        self._lock = threading.RLock()  # a signal handler may call stop() in the middle of anything
        self._client: Client | None = None
        self._shift: WorkerRun | None = None
        self._is_stopped_early = False  # before it ran

    def __repr__(self) -> str:
        return f"<Worker for {', '.join(self.tasks) or 'no queues yet'} at {self.settings.url}>"

    # ---- tasks and hooks ----

    def task(
        self,
        queue: str,
        *,
        timeout_ms: int | None = None,
        retry: Retry | Rule | None = None,
        result: bool = False,
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Make a function the handler of a queue's messages.

        Its first parameter is what its type says: ``bytes``, ``str``, the message itself (``Message``, in coroutines
        ``AsyncMessage``, or no type), or anything JSON fits: ``dict``, a dataclass, a msgspec Struct, a pydantic model. A second
        parameter is the message.

        After ``timeout_ms`` the message is nacked; a coroutine is cancelled, a thread cannot be and keeps its place until it ends.
        ``retry`` says when a failed message is tried again; None: as the queue is configured. With ``result`` what the function
        returns is kept for whoever waits for it.
        """

        def register(function: Callable[P, R]) -> Task[P, R]:
            if queue in self.tasks:
                raise Invalid(f"task {queue}: the queue has a handler already, {self.tasks[queue].name}")
            task = Task(self, queue, function, timeout_ms=timeout_ms, retry=retry, result=result)
            self.tasks[queue] = task
            return task

        return register

    def before(self, hook: Before) -> Before:
        """Have ``hook(message)`` called before each handler; an error in it fails the message."""
        self._before.append(hook)
        return hook

    def after(self, hook: After) -> After:
        """Have ``hook(message, result)`` called after each handler that ended well."""
        self._after.append(hook)
        return hook

    def failure(self, hook: Failure) -> Failure:
        """Have ``hook(message, error)`` called after each handler that failed or timed out."""
        self._failure.append(hook)
        return hook

    # ---- adding ----

    def enqueue(self, task: Task[Any, Any] | str, body: object, *, tenant: str | None = None, **options: Any) -> Added:
        """Add a message for a task or queue; ``options`` are those of ``Queue.add``. Blocks: not for coroutines."""
        queue = task if isinstance(task, str) else task.queue
        with self._lock:
            if self._client is None:
                self._client = Client(settings=self.settings)
            client = self._client
        place = client.queue(queue) if tenant is None else client.tenant(tenant).queue(queue)
        return place.add(body, **options)

    async def enqueue_async(
        self, task: Task[Any, Any] | str, body: object, *, tenant: str | None = None, **options: Any
    ) -> Added:
        """Add a message for a task or queue, from a coroutine."""
        shift = self._shift
        if shift is None or shift.loop is not asyncio.get_running_loop():
            return await asyncio.to_thread(self.enqueue, task, body, tenant=tenant, **options)
        queue = task if isinstance(task, str) else task.queue
        place = shift.client.queue(queue) if tenant is None else shift.client.tenant(tenant).queue(queue)
        return await place.add(body, **options)

    def close(self) -> None:
        """Close the client that ``enqueue`` has used, if it has."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # ---- working ----

    def run(self, *, burst: bool = False) -> bool:
        """Work until SIGTERM or SIGINT; with ``burst`` only until there is nothing left. Call it in the main thread.

        The first signal lets handlers finish within ``drain_ms`` and gives everything else back; a second one ends it at once.
        Returns whether every handler that was begun has finished.
        """
        loop = (
            asyncio.new_event_loop()
        )  # a Runner would wait for handlers that do not heed their cancellation, for ever
        try:
            return loop.run_until_complete(self._run(burst=burst))
        finally:
            loop.close()

    async def _run(self, *, burst: bool) -> bool:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
        for number in signals:
            loop.add_signal_handler(number, self._signalled)
        try:
            return await self.serve(burst=burst)
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
            await _end_the_others()

    def _signalled(self) -> None:
        shift = self._shift
        if shift is None:
            self.stop()
        else:
            shift.stop(force=shift.is_stopping)

    async def serve(self, *, burst: bool = False) -> bool:
        """Work on the running event loop until ``stop``, or until it is cancelled; signals are the caller's business.

        Returns whether every handler that was begun has finished. A coroutine that does not heed its cancellation is left to itself.
        """
        if self._shift is not None:
            raise Invalid("this worker is running already")
        async with AsyncClient(settings=self.settings) as client:
            shift = WorkerRun(client, self._plan(), burst=burst)
            with self._lock:
                self._shift = shift
                if self._is_stopped_early:
                    shift.stop(force=False)
            try:
                return await shift.work()
            finally:
                with self._lock:
                    self._shift = None
                    self._is_stopped_early = False

    def stop(self, *, force: bool = False) -> None:
        """Stop it as a signal does, from any thread; with ``force`` as a second one does.

        Where it does not run yet, it ends as soon as it does.
        """
        with self._lock:
            shift = self._shift
            if shift is None:
                self._is_stopped_early = True
                return
        shift.loop.call_soon_threadsafe(lambda: shift.stop(force=force))

    def _plan(self) -> Plan:
        tasks = list(self.tasks.values())
        if self.queues is not None:
            missing = [queue for queue in self.queues if queue not in self.tasks]
            if missing:
                raise Invalid(f"queues: there is no task for {', '.join(missing)}")
            tasks = [task for task in tasks if task.queue in self.queues]
        if not tasks:
            raise Invalid("a worker needs a task: decorate a function with @worker.task('queue')")
        return Plan(
            tasks=tasks,
            concurrency=self.concurrency,
            prefetch=self.prefetch,
            fleet=self.fleet,
            tenants=self.tenants,
            lease_ms=self.lease_ms,
            wait_ms=self.wait_ms,
            drain_ms=self.drain_ms,
            before=self._before,
            after=self._after,
            failure=self._failure,
            randomness=self.settings.randomness,
        )


async def _end_the_others() -> None:
    """Have whatever else runs on the loop end; what does not do so at once is left behind."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=END_S)
    await asyncio.get_running_loop().shutdown_asyncgens()
