"""Celery with tenantq as its broker: a real worker process, with the settings and the key that the docs describe."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tests.contract.sqs import celery_tasks
from tests.contract.sqs.sqs_server import client_of

if TYPE_CHECKING:
    from tests.contract.sqs.sqs_server import SqsServer

VISIBILITY_MS: Final = 1_800_000  # the attributes of Celery's queues
ACTIONS: Final = ("list_queues", "put_queue", "get_queue", "add", "poll", "ack", "extend", "purge")


class Worker:
    """A worker process; tests can wait for the output of its tasks."""

    def __init__(self, broker: str) -> None:
        command = [sys.executable, "-m", "celery", "-A", "tests.contract.sqs.celery_tasks", "worker"]
        self._process = subprocess.Popen(
            [*command, "--pool", "solo", "--loglevel", "WARNING"],
            cwd=Path(__file__).parents[3],
            env={**os.environ, celery_tasks.BROKER: broker},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())

    def said(self, *wanted: str) -> None:
        """Wait until the tasks have printed all this, in any order."""
        left = set(wanted)
        while left:
            left.discard(self._lines.get(timeout=30))

    def kill(self) -> None:
        """Kill it like a power cut."""
        self._process.kill()
        self._ended()

    def stop(self) -> int:
        """Let it finish its tasks; return its exit status."""
        self._process.terminate()
        return self._ended()

    def _ended(self) -> int:
        status = self._process.wait(30)
        self._reader.join(30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status


def _left(sqs: Any, url: str) -> list[str]:
    figures = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return [value for name, value in sorted(figures.items()) if name.startswith("ApproximateNumberOfMessages")]


def test_celery_worker_acks_retries_and_recovers_tasks_of_a_dead_one(
    server: SqsServer, tenant: str, tmp_path: Path
) -> None:
    """Requeued tasks return after Celery's pause, those of a killed worker after the visibility timeout."""
    key = server.key(tenant, None, actions=ACTIONS)
    broker = f"sqs://{key.key_id}:{key.secret}@127.0.0.1:{server.server.port}"
    celery_tasks.app.conf.broker_url = broker
    with Worker(broker) as first:
        celery_tasks.add.delay(2, 3)
        celery_tasks.try_again.delay(2)
        celery_tasks.not_now.delay(str(tmp_path / "put back"))
        first.said("sum 5", "tried 0", "tried 1", "tried 2", "put back")
        celery_tasks.add.delay(1, 1)
        first.said("sum 2")  # it runs one task at a time
        server.clock.advance(10_001)
        first.said("taken up again")
        celery_tasks.hold.delay(str(tmp_path / "held"))
        first.said("held")
        first.kill()
    sqs = client_of(server.url, key.key_id, key.secret)
    (url,) = sqs.list_queues()["QueueUrls"]
    assert _left(sqs, url) == ["0", "0", "1"]  # the held task is in flight, all others are done
    with Worker(broker) as second:
        celery_tasks.add.apply_async((20, 30), DelaySeconds=600)
        celery_tasks.add.apply_async((5, 6), MessageGroupId="one-customer")
        second.said("sum 11")
        server.clock.advance(VISIBILITY_MS + 1)
        second.said("freed", "sum 50")
        assert second.stop() == 0
    assert _left(sqs, url) == ["0", "0", "0"]
    for number in range(3):
        celery_tasks.add.delay(number, number)
    assert _left(sqs, url) == ["3", "0", "0"]
    celery_tasks.app.control.purge()
    assert _left(sqs, url) == ["0", "0", "0"]
    sqs.close()
