"""Opens the source that a command names."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from tenantq.errors import Invalid
from tenantq.sources.redis.bullmq import BullMq
from tenantq.sources.redis.celery import Celery
from tenantq.sources.redis.containers import RedisLayout, RedisSource
from tenantq.sources.redis.plain import PlainKeys
from tenantq.sources.redis.rq import Rq
from tenantq.sources.redis.sidekiq import Sidekiq
from tenantq.sources.redis.work_queue import WorkQueue
from tenantq.sources.source import Source


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The location of a source, and the parts of it to migrate."""

    location: str
    names: tuple[str, ...] = ()  # its queues or keys
    first: Literal["head", "tail"] = "head"  # of plain lists: the end that is delivered next
    prefix: str = "bull"  # of BullMQ's keys
    lease_s: int = 300  # of messages of SQS while they are transferred
    live: bool = False  # Queueber runs, and is followed


def _redis(layout: Callable[[SourceOptions], RedisLayout]) -> Callable[[SourceOptions], Source]:
    return lambda options: RedisSource(options.location, layout(options))


def _postgres(kind: str) -> Callable[[SourceOptions], Source]:
    def open_table(options: SourceOptions) -> Source:
        from tenantq.sources.postgres.job_table import PostgresSource  # noqa: PLC0415  # needs an extra

        return PostgresSource(options.location, kind, options.names)

    return open_table


def _queueber(options: SourceOptions) -> Source:
    from tenantq.sources.queueber import Queueber  # noqa: PLC0415  # needs an extra

    return Queueber(Path(options.location), follow=options.live)


def _sqs(options: SourceOptions) -> Source:
    """Open SQS. The location is a region, or the URL of an endpoint."""
    from tenantq.sources.sqs import SqsSource  # noqa: PLC0415  # needs an extra

    endpoint = options.location if "://" in options.location else None
    return SqsSource(options.names, endpoint, None if endpoint else options.location, options.lease_s)


def _rabbitmq(options: SourceOptions) -> Source:
    from tenantq.sources.rabbitmq import RabbitMqSource  # noqa: PLC0415  # needs an extra

    return RabbitMqSource(options.location, options.names)


_OPEN: Final[dict[str, Callable[[SourceOptions], Source]]] = {
    "queueber": _queueber,
    "work-queue": _redis(lambda _: WorkQueue()),
    "rq": _redis(lambda _: Rq()),
    "celery": _redis(lambda options: Celery(options.names)),
    "bullmq": _redis(lambda options: BullMq(options.prefix)),
    "sidekiq": _redis(lambda _: Sidekiq()),
    "redis": _redis(lambda options: PlainKeys(options.names, options.first)),
    "sqs": _sqs,
    "rabbitmq": _rabbitmq,
    **{kind: _postgres(kind) for kind in ("pgmq", "river", "procrastinate", "good-job")},
}
SOURCES: Final = tuple(_OPEN)


def open_source(kind: str, options: SourceOptions) -> Source:
    """Open a source. Raises Invalid if the location is wrong or holds another system, Unavailable if it does not answer."""
    if kind not in _OPEN:
        raise Invalid(f"source: unknown ({kind!r}, known: {', '.join(SOURCES)})")
    return _OPEN[kind](options)
