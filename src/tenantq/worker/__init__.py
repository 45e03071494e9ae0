"""The worker: runs tasks with bounded concurrency and stops gracefully."""

from tenantq.worker.job import TaskTimedOut
from tenantq.worker.loader import load_worker
from tenantq.worker.retry import Retry
from tenantq.worker.task import Task
from tenantq.worker.worker import Worker

__all__ = ["Retry", "Task", "TaskTimedOut", "Worker", "load_worker"]
