"""``tenantq migrate-from`` for systems on Redis: each message once, in order, with its delay and its dead letters."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from redis import Redis
from rq import Queue as RqQueue

from tenantq import Client
from tests.acceptance.command import ADMIN_TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.command import Served
    from tests.redis_servers import RedisServer

HOUR_S = 3_600


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    """Connect as the administrator."""
    with Client(server.url, ADMIN_TOKEN) as found:
        yield found


class Migration:
    """Migrates from one Redis into its own tenant."""

    def __init__(self, server: Served, client: Client, redis: RedisServer, tenant: str) -> None:
        self.server, self.redis, self.tenant = server, redis.client(), client.tenant(tenant)
        self.url, self.name = redis.url, tenant
        self.tenant.configure()

    def run(self, kind: str, *arguments: object, code: int = 0) -> Any:
        """Run the command and return its report."""
        done = self.server.call("migrate-from", kind, self.url, *arguments, "--tenant", self.name, "--json")
        assert done.code == code, done
        return done.json

    def bodies(self, queue: str) -> list[bytes]:
        """Return the bodies of everything that is ready."""
        found = self.tenant.queue(queue).poll(max=1_000)
        for message in found:
            message.ack()
        return [message.body for message in found]


@pytest.fixture
def migration(server: Served, client: Client, redis_server: RedisServer, request: pytest.FixtureRequest) -> Migration:
    """Prepare a migration."""
    name = f"r{abs(hash(request.node.name)) % 10**9}-{int(time.time() * 1000) % 10**6}"
    return Migration(server, client, redis_server, name)


def test_plain_list_is_read_in_order_and_left_unchanged(migration: Migration) -> None:
    """Equal elements are different messages, and a second run adds nothing."""
    migration.redis.rpush("jobs", *(b"%d" % n for n in range(1_200)), b"same", b"same", b"\xff\x00")
    assert migration.run("redis", "jobs")["added"] == 1_203
    assert migration.run("redis", "jobs")["added"] == 0
    assert migration.redis.llen("jobs") == 1_203
    assert migration.bodies("jobs")[:3] == [b"0", b"1", b"2"]


def test_list_is_drained_from_its_delivery_end(migration: Migration) -> None:
    """Equal elements in different batches are all migrated."""
    migration.redis.lpush("jobs", *[b"same"] * 700, b"last")
    report = migration.run("redis", "jobs", "--mode", "drain", "--first", "tail")
    assert (report["added"], report["left"]) == (701, 0)
    assert migration.redis.keys() == []
    assert migration.bodies("jobs") == [b"same"] * 700 + [b"last"]


def test_killed_drain_resumes_with_its_pending_messages(migration: Migration) -> None:
    """What was stored but not yet deleted at the source is not added twice."""
    migration.redis.rpush("jobs", *(b"%d" % n for n in range(10)))
    migration.redis.rpush("jobs:tenantq-draining", "1.2-1 - aside")
    migration.redis.copy("jobs:tenantq-draining", "kept")
    migration.run("redis", "jobs", "--mode", "drain")
    migration.redis.copy("kept", "jobs:tenantq-draining")  # as if it was killed before it deleted this
    assert migration.run("redis", "jobs", "--mode", "drain")["added"] == 0
    assert migration.bodies("jobs") == [b"aside", *(b"%d" % n for n in range(10))]


def test_scores_of_a_sorted_set_are_times(migration: Migration) -> None:
    """They are in seconds or milliseconds; other scores only define the order."""
    now = time.time()
    migration.redis.zadd("later", {"in an hour": now + HOUR_S, "past": now - 1, "ms": (now + HOUR_S) * 1_000})
    assert migration.run("redis", "later", "--mode", "drain")["added"] == 3
    assert migration.tenant.queue("later").stats().delayed == 2
    assert migration.bodies("later") == [b"past"]


def test_entries_of_a_stream_keep_their_order(migration: Migration) -> None:
    """One field is the body; several are a JSON object."""
    migration.redis.xadd("events", {"payload": "one"})
    migration.redis.xadd("events", {"a": "1", "b": "2"})
    assert migration.run("redis", "events")["added"] == 2
    assert migration.run("redis", "events", "--mode", "drain")["added"] == 0
    assert migration.redis.xlen("events") == 0
    first, second = migration.bodies("events")
    assert (first, json.loads(second)) == (b"one", {"a": "1", "b": "2"})


def test_go_redis_work_queue_in_both_layouts(migration: Migration) -> None:
    """High priority comes first, workers' jobs become ready, dead letters stay dead, tenants are mapped by name."""
    high, low, held, dead = ({"id": name, "filepath": name, "priority": "high_priority"} for name in "abcd")
    migration.redis.lpush("jobqueue:high_priority", json.dumps(high))
    migration.redis.lpush("jobqueue:low_priority", json.dumps(low))
    migration.redis.lpush("jobqueue:worker:7:processing", json.dumps(held))
    migration.redis.lpush("jobqueue:dead_letter", json.dumps(dead))
    migration.redis.lpush("jobqueue:completed", json.dumps({"id": "x"}))
    migration.redis.lpush("t:acme:mail:jobs", json.dumps({"id": "m"}))
    migration.redis.lpush("t:acme:mail:dlq", json.dumps({"id": "n"}))
    report = migration.run("work-queue", "--mode", "drain")
    assert report["added"] == 6
    assert [json.loads(body)["id"] for body in migration.bodies("high_priority")] == ["a", "c"]
    assert [json.loads(body)["id"] for body in migration.bodies("low_priority")] == ["b"]
    assert [json.loads(body)["id"] for body in migration.bodies("mail")] == ["m"]
    (letter,) = migration.tenant.queue("high_priority-dlq").peek().messages
    assert letter.dead is not None
    assert migration.redis.keys("t:*") == []


def test_tenants_of_the_source_are_used_unless_the_command_names_one(
    server: Served, client: Client, redis_server: RedisServer
) -> None:
    """``t:<tenant>:<queue>`` goes to the tenant of that name."""
    client.tenant("from-keys").configure()
    redis_server.client().lpush("t:from-keys:mail", json.dumps({"id": "m"}))
    done = server.ok("migrate-from", "work-queue", redis_server.url, "--json").json
    assert [(one["tenant"], one["queue"], one["added"]) for one in done["queues"]] == [("from-keys", "mail", 1)]


def work(number: int) -> int:
    """Act as a task."""
    return number


def test_rq_jobs_of_every_registry(migration: Migration) -> None:
    """RQ itself writes the jobs."""
    connection = Redis.from_url(migration.url)
    queue = RqQueue("emails", connection=connection)
    jobs = [queue.enqueue(work, number) for number in range(3)]
    failed = queue.enqueue(work, 9)
    connection.lrem("rq:queue:emails", 1, failed.id)
    connection.zadd("rq:failed:emails", {failed.id: time.time()})
    connection.hset(f"rq:job:{failed.id}", "exc_info", "Traceback\nValueError: broken")
    connection.zadd("rq:scheduled:emails", {jobs[2].id: time.time() + HOUR_S})
    connection.lrem("rq:queue:emails", 1, jobs[2].id)
    connection.rpush("rq:queue:emails", "gone")
    report = migration.run("rq", code=7)
    assert (report["added"], report["skipped"]) == (4, {"ids without a message; skipped": 1})
    messages = migration.tenant.queue("emails").poll(max=10)
    assert [message.attributes["rq-job-id"] for message in messages] == [job.id for job in jobs[:2]]
    assert messages[0].body == jobs[0].data
    assert migration.tenant.queue("emails").stats().delayed == 1
    (letter,) = migration.tenant.queue("emails-dlq").peek().messages
    assert letter.dead is not None
    assert letter.dead.reason == "ValueError: broken"


def test_celery_messages_in_order_with_eta_and_unacked(migration: Migration) -> None:
    """Celery itself writes them; the body is the envelope, which Celery can read from the SQS endpoint."""
    app = Celery("old", broker=migration.url + "/0")
    sent = [app.send_task("tasks.add", (number,), queue="math") for number in range(3)]
    app.send_task("tasks.add", (3,), queue="math", countdown=HOUR_S)
    raw = migration.redis.rpop("math")  # a worker holds the first
    migration.redis.hset("unacked", "tag-1", json.dumps([json.loads(raw), "", "math"]))
    assert migration.run("celery")["added"] == 4
    messages = migration.tenant.queue("math").poll(max=10)
    assert [message.attributes["celery-id"] for message in messages] == [sent[1].id, sent[2].id, sent[0].id]
    assert json.loads(messages[0].body)["headers"]["task"] == "tasks.add"
    assert migration.tenant.queue("math").stats().delayed == 1


def test_bullmq_jobs_of_every_state(migration: Migration) -> None:
    """Waiting jobs are taken from the tail; a delayed job's score holds its time."""
    redis = migration.redis
    redis.set("bull:paint:id", "5")
    for id in range(1, 6):
        fields = {
            "name": "wall",
            "data": json.dumps({"id": id}),
            "timestamp": "1700000000000",
            "failedReason": "no paint",
        }
        redis.hset(f"bull:paint:{id}", mapping=fields)
    redis.lpush("bull:paint:wait", "1", "2")
    redis.lpush("bull:paint:active", "3")
    redis.zadd("bull:paint:delayed", {"4": int((time.time() + HOUR_S) * 1_000) * 4_096 + 4})
    redis.zadd("bull:paint:failed", {"5": time.time() * 1_000})
    assert migration.run("bullmq", "--mode", "drain")["added"] == 5
    assert [json.loads(body)["id"] for body in migration.bodies("paint")] == [3, 1, 2]
    assert migration.tenant.queue("paint").stats().delayed == 1
    (letter,) = migration.tenant.queue("paint-dlq").peek().messages
    assert letter.dead is not None
    assert letter.dead.reason == "no paint"
    assert redis.keys("bull:paint:[0-9]*") == []


def test_sidekiq_jobs_of_every_set(migration: Migration) -> None:
    """Scheduled and retried jobs are delayed; dead ones are dead letters."""
    redis = migration.redis
    job = {"class": "Mailer", "args": [1], "queue": "mail", "created_at": time.time()}
    redis.sadd("queues", "mail")
    for number in range(3):
        redis.lpush("queue:mail", json.dumps({**job, "jid": f"j{number}"}))
    redis.zadd("schedule", {json.dumps({**job, "jid": "later"}): time.time() + HOUR_S})
    redis.zadd("retry", {json.dumps({**job, "jid": "retried"}): time.time() + HOUR_S})
    redis.zadd("dead", {json.dumps({**job, "jid": "dead", "error_message": "no mail"}): time.time()})
    redis.lpush("queue:mail", "not json")
    report = migration.run("sidekiq", code=7)
    assert report["skipped"] == {"Sidekiq job: not JSON; skipped": 1}
    assert [json.loads(body)["jid"] for body in migration.bodies("mail")] == ["j0", "j1", "j2"]
    assert migration.tenant.queue("mail").stats().delayed == 2
    (letter,) = migration.tenant.queue("mail-dlq").peek().messages
    assert letter.dead is not None
    assert letter.dead.reason == "no mail"


def test_mapping_file_redirects_queues(migration: Migration, client: Client, tmp_path: Any) -> None:
    """It sets tenant, queue and priority; omitted queues stay where they are."""
    other = f"{migration.name}-b"
    client.tenant(other).configure()
    file = tmp_path / "mapping.toml"
    file.write_text(
        f'[[queues]]\nsource = "high*"\ntenant = "{other}"\nqueue = "urgent"\npriority = 7\n'
        '[[queues]]\nsource = "junk"\nskip = true\n'
    )
    for key in ("high", "junk", "rest"):
        migration.redis.rpush(key, key)
    report = migration.run("redis", "high", "junk", "rest", "--mapping", file, code=7)
    assert report["skipped"] == {"left out by the mapping": 1}
    (urgent,) = client.tenant(other).queue("urgent").poll(max=10)
    assert (urgent.body, urgent.priority) == (b"high", 7)
    assert migration.bodies("rest") == [b"rest"]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("redis", "redis://127.0.0.1:1/0", "jobs"), 6, "the source Redis does not answer"),
        (("redis", "nonsense", "jobs"), 2, "not a Redis URL"),
        (("redis", "redis://127.0.0.1:1/0"), 2, "name the lists"),
        (("nonsense", "x"), 2, "nonsense"),
        (("queueber", "/nowhere", "--mode", "drain"), 2, "not a RocksDB directory"),
    ],
)
def test_invalid_sources_are_a_one_line_error(server: Served, arguments: tuple[str, ...], code: int, text: str) -> None:
    """Nothing changes."""
    done = server.call("migrate-from", *arguments)
    assert (done.code, text in done.err, len(done.err.splitlines())) == (code, True, 1), done


def test_oversized_message_is_reported_and_left(migration: Migration) -> None:
    """The exit code is 7, and everything else is migrated."""
    migration.redis.rpush("jobs", b"small", b"x" * ((1 << 20) + 1))
    report = migration.run("redis", "jobs", "--mode", "drain", code=7)
    assert report["skipped"] == {"bodies larger than 1048576 bytes": 1}
    assert migration.bodies("jobs") == [b"small"]
    assert migration.redis.llen("jobs:tenantq-draining") == 2
