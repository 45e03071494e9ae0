"""Tasks of a Celery application whose broker is tenantq; each prints its outcome on the worker's output."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from celery import Celery
from celery.exceptions import Reject

BROKER = "CELERY_TEST_BROKER"

app = Celery("tests", broker=os.environ.get(BROKER))
app.conf.broker_transport_options = {"region": "eu-north-1", "is_secure": False}
app.conf.task_acks_late = True  # messages of a dead worker return


def _say(*words: object) -> None:
    sys.__stdout__.write(" ".join(map(str, words)) + "\n")  # type: ignore[union-attr]  # a worker has one
    sys.__stdout__.flush()  # type: ignore[union-attr]  # as above


def _add(one: int, other: int) -> None:
    _say("sum", one + other)


def _try_again(task: Any, times: int) -> None:
    """Fail, and be retried by Celery a number of times."""
    _say("tried", task.request.retries)
    if task.request.retries < times:
        raise task.retry(countdown=0)


def _not_now(mark: str) -> None:
    """Be rejected and requeued by the worker the first time."""
    if _is_first(mark):
        _say("put back")
        raise Reject(requeue=True)
    _say("taken up again")


def _hold(mark: str) -> None:
    """Never finish the first time: the worker has to be killed."""
    if _is_first(mark):
        _say("held")
        signal.pause()
    _say("freed")


def _is_first(mark: str) -> bool:
    """Return whether this is the first run, and leave a mark."""
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


add = app.task(_add, name="add")
try_again = app.task(_try_again, name="try_again", bind=True)
not_now = app.task(_not_now, name="not_now")
hold = app.task(_hold, name="hold")
