"""A migration that is killed at any moment continues with the same command: nothing is lost, nothing comes twice."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import TYPE_CHECKING

from tenantq import Client
from tests.acceptance.command import ADMIN_TOKEN, COMMAND

if TYPE_CHECKING:
    from tests.acceptance.command import Served
    from tests.redis_servers import RedisServer

MESSAGES = 6_000


def test_a_killed_migration_continues_with_the_same_command(server: Served, old_redis: RedisServer) -> None:
    """Killed three times while it drains a list of equal and different elements."""
    redis = old_redis.client()
    redis.rpush("jobs", *(b"%d" % (number // 2) for number in range(MESSAGES)))
    with Client(server.url, ADMIN_TOKEN) as client:
        tenant = client.tenant("killed-here")
        tenant.configure()
        command = ["migrate-from", "redis", old_redis.url, "jobs", "--tenant", "killed-here", "--mode", "drain"]
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
