"""The worker: declares tasks and runs them until it is stopped."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ParamSpec, TypeVar

import msgspec

from tenantq.client.async_client import AsyncClient
from tenantq.client.settings import URL_DEFAULT, Settings
from tenantq.client.sync_client import Client
from tenantq.client.values import Added
from tenantq.domain import limits
from tenantq.domain.names import check_queue_name, check_tenant_name
from tenantq.domain.validation import between, check_field, matching
from tenantq.errors import Invalid
from tenantq.worker.plan import After, Before, Failure, WorkerPlan
from tenantq.worker.retry import Retry, RetryRule
from tenantq.worker.run import WorkerRun
from tenantq.worker.task import Task

P = ParamSpec("P")
R = TypeVar("R")

WorkerName = Annotated[str, matching("[!-~]{1,100}", "1 to 100 printable ASCII characters without spaces")]
CONCURRENCY_MAX = 10_000
CANCEL_S = 0.25


class Worker:
    """Handles the messages of its tasks' queues.

        worker = Worker("http://127.0.0.1:7070", token="...")

        @worker.task("mail")
        def send(mail: dict) -> None: ...

        worker.run()

    Up to ``concurrency`` handlers run at a time: coroutines on the event loop, functions in threads. ``prefetch`` more messages are
    held ready, by default as many; set it to 0 for slow handlers, to leave messages at the server for other workers. Leases of held
    messages are kept alive. With ``fleet`` each queue name is served in every tenant the credential is granted in, or in ``tenants``,
    in fair turns.

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
        name: str | None = None,
        before: Iterable[Before] = (),
        after: Iterable[After] = (),
        failure: Iterable[Failure] = (),
    ) -> None:
        """Create a worker for a server's address, or for the server of a client. Nothing is sent before it runs.

        ``queues`` limits it to some of its tasks. ``drain_ms`` is how long handlers may continue after a stop.
        ``name`` identifies it in ``tenantq workers``; by default it consists of host and process.
        """
        if isinstance(client, Settings):
            self.settings = client
        else:
            self.settings = (AsyncClient(client, token) if isinstance(client, str) else client).settings
        prefetch = concurrency if prefetch is None else prefetch
        self.concurrency = check_field("concurrency", concurrency, Annotated[int, between(1, CONCURRENCY_MAX)])
        self.prefetch = check_field("prefetch", prefetch, Annotated[int, between(0, CONCURRENCY_MAX)])
        self.lease_ms = check_field("lease_ms", lease_ms, Annotated[int, between(1_000, limits.LEASE_MS_MAX)])
        self.wait_ms = check_field("wait_ms", wait_ms, limits.WaitMs)
        self.drain_ms = check_field("drain_ms", drain_ms, Annotated[int, between(0, limits.TTL_MS_MAX)])
        if tenants is not None and not fleet:
            raise Invalid("tenants: requires fleet=True")
        self.queues = None if queues is None else [check_queue_name(queue) for queue in queues]
        self.name = check_field("name", name or f"{socket.gethostname()}-{os.getpid()}", WorkerName)
        self.fleet = fleet
        self.tenants = None if tenants is None else [check_tenant_name(tenant) for tenant in tenants]
        self.tasks: dict[str, Task[Any, Any]] = {}
        self._before: list[Before] = list(before)
        self._after: list[After] = list(after)
        self._failure: list[Failure] = list(failure)
        self._lock = threading.RLock()  # reentrant: a signal handler may call stop() at any point
        self._client: Client | None = None
        self._current_run: WorkerRun | None = None
        self._is_stopped_early = False  # before run()

    def __repr__(self) -> str:
        return f"<Worker for {', '.join(self.tasks) or 'no queues yet'} at {self.settings.url}>"

    # ---- tasks and hooks ----

    def task(
        self, queue: str, *, timeout_ms: int | None = None, retry: Retry | RetryRule | None = None, result: bool = False
    ) -> Callable[[Callable[P, R]], Task[P, R]]:
        """Register a function as the handler of a queue.

        Its first parameter gets the body or the message, depending on its type: ``bytes``, ``str``, the message itself (``Message``, in coroutines
        ``AsyncMessage``, or no annotation), or anything decoded from JSON: ``dict``, a dataclass, a msgspec Struct, a pydantic model.
        A second parameter gets the message.

        After ``timeout_ms`` the message is nacked. A coroutine is cancelled; a thread cannot be cancelled and occupies its slot until it
        ends. ``retry`` sets the retry delay; None: the queue's backoff. With ``result`` the return value is stored as the result.
        """

        def register(function: Callable[P, R]) -> Task[P, R]:
            if queue in self.tasks:
                raise Invalid(f"task {queue}: the queue already has a handler, {self.tasks[queue].name}")
            task = Task(self, queue, function, timeout_ms=timeout_ms, retry=retry, result=result)
            self.tasks[queue] = task
            return task

        return register

    def before(self, hook: Before) -> Before:
        """Call ``hook(message)`` before each handler. An error in it fails the message."""
        self._before.append(hook)
        return hook

    def after(self, hook: After) -> After:
        """Call ``hook(message, result)`` after each successful handler."""
        self._after.append(hook)
        return hook

    def failure(self, hook: Failure) -> Failure:
        """Call ``hook(message, error)`` after each handler that failed or timed out."""
        self._failure.append(hook)
        return hook

    # ---- adding ----

    def enqueue(self, task: Task[Any, Any] | str, body: object, *, tenant: str | None = None, **options: Any) -> Added:
        """Add a message for a task or queue, with the options of ``Queue.add``. Blocks; not for coroutines."""
        queue = task if isinstance(task, str) else task.queue
        with self._lock:
            client = self._client = self._client or Client(settings=self.settings)
        target = client.queue(queue) if tenant is None else client.tenant(tenant).queue(queue)
        return target.add(body, **options)

    async def enqueue_async(
        self, task: Task[Any, Any] | str, body: object, *, tenant: str | None = None, **options: Any
    ) -> Added:
        """Add a message for a task or queue, from a coroutine."""
        run = self._current_run
        if run is None or run.loop is not asyncio.get_running_loop():
            return await asyncio.to_thread(self.enqueue, task, body, tenant=tenant, **options)
        queue = task if isinstance(task, str) else task.queue
        target = run.client.queue(queue) if tenant is None else run.client.tenant(tenant).queue(queue)
        return await target.add(body, **options)

    def close(self) -> None:
        """Close the client that ``enqueue`` uses."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # ---- working ----

    def run(self, *, burst: bool = False) -> bool:
        """Work until SIGTERM or SIGINT; with ``burst`` only until all queues are empty. Call it in the main thread.

        The first signal lets handlers finish within ``drain_ms`` and releases all other messages; a second one ends the worker immediately.
        Returns whether every started handler finished.
        """
        loop = asyncio.new_event_loop()  # asyncio.Runner would wait forever for handlers that ignore cancellation
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
            await _cancel_other_tasks()

    def _signalled(self) -> None:
        run = self._current_run
        if run is None:
            self.stop()
        else:
            run.stop(force=run.is_stopping)

    async def serve(self, *, burst: bool = False) -> bool:
        """Work on the running event loop until ``stop`` or cancellation, without signal handlers.

        Returns whether every started handler finished. A coroutine that ignores its cancellation is abandoned.
        """
        if self._current_run is not None:
            raise Invalid("the worker is already running")
        agent = f"{self.settings.user_agent} worker/{self.name}"
        async with AsyncClient(settings=msgspec.structs.replace(self.settings, user_agent=agent)) as client:
            run = WorkerRun(client, self._plan(), burst=burst)
            with self._lock:
                self._current_run = run
                if self._is_stopped_early:
                    run.stop(force=False)
            try:
                return await run.work()
            finally:
                with self._lock:
                    self._current_run = None
                    self._is_stopped_early = False

    def stop(self, *, force: bool = False) -> None:
        """Stop as the first signal does, from any thread; with ``force`` as the second one does.

        If the worker does not run yet, it stops as soon as it starts.
        """
        with self._lock:
            run = self._current_run
            if run is None:
                self._is_stopped_early = True
                return
        run.loop.call_soon_threadsafe(lambda: run.stop(force=force))

    def _plan(self) -> WorkerPlan:
        tasks = list(self.tasks.values())
        if self.queues is not None:
            missing = [queue for queue in self.queues if queue not in self.tasks]
            if missing:
                raise Invalid(f"queues: no task for {', '.join(missing)}")
            tasks = [task for task in tasks if task.queue in self.queues]
        if not tasks:
            raise Invalid("the worker has no tasks. Decorate a function with @worker.task('queue').")
        return WorkerPlan(
            tasks=tasks, concurrency=self.concurrency, prefetch=self.prefetch, fleet=self.fleet, tenants=self.tenants,
            lease_ms=self.lease_ms, wait_ms=self.wait_ms, drain_ms=self.drain_ms, before=self._before,
            after=self._after, failure=self._failure, randomness=self.settings.randomness,
        )  # fmt: skip


async def _cancel_other_tasks() -> None:
    """Cancel all other tasks of the loop. Those that do not end soon are abandoned."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=CANCEL_S)
    await asyncio.get_running_loop().shutdown_asyncgens()
