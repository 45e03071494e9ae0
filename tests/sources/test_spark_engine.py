"""``tenantq migrate-from --engine spark``: the same messages, report and keys as without Spark, in parallel parts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tenantq import Client
from tenantq.sources.source import even_ranges
from tests.acceptance.command import ADMIN_TOKEN
from tests.pipeline.conftest import spark
from tests.sources.queueber_store import QueueberStore, uuid7
from tests.sources.test_postgres import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.command import Served
    from tests.redis_servers import RedisServer

__all__ = ["spark"]  # a fixture
pytestmark = pytest.mark.usefixtures("spark")
NOW_MS = int(time.time() * 1_000)


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    """Connect as the administrator."""
    with Client(server.url, ADMIN_TOKEN) as found:
        yield found


def migrate_twice(server: Served, tenant: str, *source: object, code: int = 0) -> Any:
    """Migrate with Spark, then without: the second run finds the same and adds nothing. Return the first report."""
    command = ("migrate-from", *source, "--tenant", tenant, "--json")
    reports = []
    for engine in (("--engine", "spark", "--parts", 4), ()):
        done = server.call(*command, *engine)
        assert done.code == code, done
        reports.append(done.json)
    first, again = reports
    assert (again["added"], again["read"], again["skipped"]) == (0, first["read"], first["skipped"])
    assert [one["digest"] for one in again["queues"]] == [one["digest"] for one in first["queues"]]
    assert first["verified"]
    return first


def bodies(client: Client, tenant: str, queue: str) -> list[bytes]:
    """Return everything that is ready, in order."""
    found: list[bytes] = []
    while got := client.tenant(tenant).queue(queue).poll(max=1_000):
        found += [message.body for message in got]
    return found


def test_redis_keys_keep_order_and_equal_elements(server: Served, client: Client, redis_server: RedisServer) -> None:
    """A list whose elements repeat three times, and a stream."""
    client.tenant("spark-redis").configure()
    redis = redis_server.client()
    elements = [b"%d" % (number % 700) for number in range(2_100)]
    redis.rpush("jobs", *elements)
    for number in range(300):
        redis.xadd("events", {"body": b"%d" % number})
    report = migrate_twice(server, "spark-redis", "redis", redis_server.url, "jobs", "events")
    assert report["added"] == 2_400
    assert bodies(client, "spark-redis", "jobs") == elements
    assert bodies(client, "spark-redis", "events") == [b"%d" % number for number in range(300)]


def test_postgres_tables_are_read_by_key_range(server: Served, client: Client, postgres: str) -> None:
    """Numeric and UUID keys work."""
    client.tenant("spark-postgres").configure()
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("create database on_spark")
    url = postgres.replace("/postgres", "/on_spark")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES)
        connection.execute(
            "insert into river_job (kind, args) select 'k', jsonb_build_object('n', n) from generate_series(1, 1500) n"
        )
        connection.execute(
            "insert into good_jobs (queue_name, serialized_params) select 'mail', jsonb_build_object('n', n)"
            " from generate_series(1, 200) n"
        )
    assert migrate_twice(server, "spark-postgres", "river", url)["added"] == 1_500
    assert bodies(client, "spark-postgres", "default") == [b'{"n": %d}' % number for number in range(1, 1_501)]
    assert migrate_twice(server, "spark-postgres", "good-job", url)["added"] == 200


def test_a_queueber_store_is_read_by_id_range(server: Served, client: Client, tmp_path: Path) -> None:
    """Delays, leases and damage are reported as without Spark."""
    client.tenant("spark-queueber").configure()
    now_s = NOW_MS // 1_000
    store = QueueberStore(tmp_path / "old")
    for number in range(1_000):
        store.add(uuid7(NOW_MS - 5_000 + number, number), b"%d" % number, now_s - 2_000 + number)
    store.add(uuid7(NOW_MS, 2_000), b"later", now_s + 86_400)
    store.lease(uuid7(NOW_MS, 2_001), {uuid7(NOW_MS, 2_002): b"held"}, now_s + 86_400)
    lost = uuid7(NOW_MS, 2_003)
    store.put("visibility_index", now_s.to_bytes(8) + b"/" + lost, b"available/" + lost)
    store.close()
    report = migrate_twice(server, "spark-queueber", "queueber", tmp_path / "old", code=7)
    assert (report["added"], report["skipped"]) == (1_002, {"index rows without an item; skipped": 1})
    assert bodies(client, "spark-queueber", "default") == [*(b"%d" % number for number in range(1_000)), b"held"]


def test_task_error_ends_the_command_with_its_exit_code(server: Served, redis_server: RedisServer) -> None:
    """Here a quota refuses the messages."""
    with Client(server.url, ADMIN_TOKEN) as client:
        client.tenant("spark-full").configure(quotas={"backlog": 10})
    redis_server.client().rpush("jobs", *(b"%d" % number for number in range(100)))
    done = server.call("migrate-from", "redis", redis_server.url, "jobs", "--tenant", "spark-full", "--engine", "spark")
    assert (done.code, "backlog" in done.err, len(done.err.splitlines())) == (5, True, 1)


@pytest.mark.parametrize("options", [("--mode", "drain"), ("--live",)])
def test_sources_unsupported_by_spark_are_refused(
    server: Served, redis_server: RedisServer, options: tuple[str, ...]
) -> None:
    """They are refused before Spark starts."""
    done = server.call("migrate-from", "redis", redis_server.url, "jobs", "--engine", "spark", *options)
    assert done.code == 2


def test_invalid_token_is_found_before_spark_starts(server: Served, redis_server: RedisServer) -> None:
    """The token is checked first, even without Java."""
    redis_server.client().rpush("jobs", b"one")
    command = ("migrate-from", "redis", redis_server.url, "jobs", "--tenant", "any", "--engine", "spark")
    done = server.call(*command, PATH="", JAVA_HOME="", TENANTQ_TOKEN=f"tq_wrong_{1:032}")
    assert done.code == 4, done


def test_ranges_cover_everything_once() -> None:
    """They have no gaps and no overlaps, even with fewer numbers than ranges."""
    assert even_ranges(5, 5, 4) == [(5, 6)]
    ranges = even_ranges(1, 1_000, 7)
    assert [number for low, high in ranges for number in range(low, high)] == list(range(1, 1_001))
