"""A migration killed at any moment resumes with the same command: nothing is lost or duplicated."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pika
import psycopg
import pytest

from tenantq import Client
from tests.acceptance.command import ADMIN_TOKEN, COMMAND
from tests.sources.queueber_store import QueueberStore, uuid7
from tests.sources.test_postgres import TABLES

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.command import Served
    from tests.redis_servers import RedisServer

MESSAGES = 6_000
BODIES = [b'{"n": %d}' % number for number in range(MESSAGES)]


def kill_and_finish(server: Served, tenant: str, queue: str, *command: object) -> list[bytes]:
    """Kill a migration three times while it adds messages, let it finish, and return what is ready."""
    arguments = ["migrate-from", *map(str, command), "--tenant", tenant]
    with Client(server.url, ADMIN_TOKEN) as client:
        client.tenant(tenant).configure()
        target = client.tenant(tenant).queue(queue)
        target.configure()
        for _ in range(3):
            before = target.stats().ready
            process = subprocess.Popen([COMMAND, *arguments], env=server.environment(), stdout=subprocess.DEVNULL)
            while process.poll() is None and target.stats().ready == before:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            process.wait()
        done = server.ok(*arguments, "--json").json
        assert done["verified"]
        bodies = list[bytes]()
        while got := target.poll(max=1_000):
            bodies += [message.body for message in got]
        return bodies


def test_killed_migration_resumes_with_the_same_command(server: Served, redis_server: RedisServer) -> None:
    """It is killed three times while it drains a list with repeated elements."""
    redis = redis_server.client()
    redis.rpush("jobs", *(b"%d" % (number // 2) for number in range(MESSAGES)))
    with Client(server.url, ADMIN_TOKEN) as client:
        tenant = client.tenant("killed-here")
        tenant.configure()
        command = ["migrate-from", "redis", redis_server.url, "jobs", "--tenant", "killed-here", "--mode", "drain"]
        for _ in range(3):
            before = redis.llen("jobs")
            process = subprocess.Popen([COMMAND, *command], env=server.environment(), stdout=subprocess.DEVNULL)
            while process.poll() is None and redis.llen("jobs") == before:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            process.wait()
        server.ok(*command)
        queue, bodies = tenant.queue("jobs"), list[bytes]()
        while got := queue.poll(max=1_000):
            bodies += [message.body for message in got]
    assert bodies == [b"%d" % (number // 2) for number in range(MESSAGES)]
    assert redis.keys() == []


@pytest.mark.parametrize("mode", ["snapshot", "drain"])
def test_killed_migration_from_postgres_resumes(server: Served, postgres: str, mode: str) -> None:
    """Every job arrives once, in order."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"create database killed_{mode}")
    url = postgres.replace("/postgres", f"/killed_{mode}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES)
        connection.execute(
            "insert into river_job (kind, args) select 'k', jsonb_build_object('n', n) from generate_series(0, %s) n",
            (MESSAGES - 1,),
        )
    assert kill_and_finish(server, f"killed-{mode}", "default", "river", url, "--mode", mode) == BODIES


def test_killed_migration_from_queueber_resumes(server: Served, tmp_path: Path) -> None:
    """Every item arrives once, in order."""
    now_ms = int(time.time() * 1_000)
    store = QueueberStore(tmp_path / "old")
    for number, body in enumerate(BODIES):
        store.add(uuid7(now_ms, number), body, now_ms // 1_000 - 10)
    store.close()
    assert kill_and_finish(server, "killed-queueber", "default", "queueber", tmp_path / "old") == BODIES


def test_killed_migration_from_rabbitmq_resumes(server: Served, rabbitmq: str) -> None:
    """The broker redelivers unacknowledged messages, and their keys deduplicate them."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq))
    channel = connection.channel()
    channel.queue_declare("killed")
    for number, body in enumerate(BODIES):
        channel.basic_publish("", "killed", body, pika.BasicProperties(message_id=str(number)))
    assert sorted(kill_and_finish(server, "killed-rabbit", "killed", "rabbitmq", rabbitmq, "killed")) == sorted(BODIES)
    connection.close()


def test_progress_is_shown_on_a_terminal(server: Served, redis_server: RedisServer) -> None:
    """It counts messages."""
    redis_server.client().rpush("jobs", *BODIES)
    with Client(server.url, ADMIN_TOKEN) as client:
        client.tenant("seen-here").configure()
    code, shown = server.run_on_terminal("migrate-from", "redis", redis_server.url, "jobs", "--tenant", "seen-here")
    assert (code, "of 6,000 messages" in shown, "verified" in shown) == (0, True, True)
