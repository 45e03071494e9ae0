"""``tenantq migrate-from`` for job tables in a real PostgreSQL."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tenantq import Client
from tests.acceptance.command import ADMIN_TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.command import Served

TABLES = """
create schema pgmq;
create table pgmq.q_mail (msg_id bigint generated always as identity primary key, read_ct int not null default 0,
    enqueued_at timestamptz not null default now(), vt timestamptz not null, message jsonb);
create table pgmq.a_mail (like pgmq.q_mail);
create type river_job_state as enum
    ('available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running', 'scheduled');
create table river_job (id bigserial primary key, args jsonb not null default '{}', attempt smallint not null default 0,
    created_at timestamptz not null default now(), errors jsonb[], kind text not null, priority smallint not null default 1,
    queue text not null default 'default', state river_job_state not null default 'available',
    scheduled_at timestamptz not null default now());
create type procrastinate_job_status as enum ('todo', 'doing', 'succeeded', 'failed', 'cancelled', 'aborted');
create table procrastinate_jobs (id bigserial primary key, queue_name varchar(128) not null, task_name varchar(128) not null,
    priority integer not null default 0, lock text, args jsonb not null default '{}',
    status procrastinate_job_status not null default 'todo', scheduled_at timestamptz, attempts integer not null default 0);
create table good_jobs (id uuid primary key default gen_random_uuid(), queue_name text, priority integer,
    serialized_params jsonb, scheduled_at timestamptz, performed_at timestamptz, finished_at timestamptz, error text,
    created_at timestamptz not null default now());
"""


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    """Connect as the administrator."""
    with Client(server.url, ADMIN_TOKEN) as found:
        yield found


@pytest.fixture(scope="module")
def database(postgres: str) -> Iterator[psycopg.Connection[Any]]:
    """Create the tables of all systems."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(TABLES)
        yield connection


def migrate(server: Served, url: str, kind: str, tenant: str, *arguments: object, code: int = 0) -> Any:
    """Run the command and return its report."""
    done = server.call("migrate-from", kind, url, *arguments, "--tenant", tenant, "--json")
    assert done.code == code, done
    return done.json


def ready(client: Client, tenant: str, queue: str) -> list[dict[str, Any]]:
    """Return everything that is ready."""
    return [json.loads(message.body) for message in client.tenant(tenant).queue(queue).poll(max=1_000)]


def test_pgmq_messages_that_were_read_become_ready(
    server: Served, client: Client, postgres: str, database: psycopg.Connection[Any]
) -> None:
    """A message that was never read stays delayed until its time; a second run adds nothing."""
    client.tenant("pgmq-here").configure()
    database.execute(
        "insert into pgmq.q_mail (read_ct, vt, message) values"
        """ (0, now() - interval '1 s', '{"n": 1}'), (2, now() + interval '1 h', '{"n": 2}'), (0, now() + interval '1 h', '{"n": 3}')"""
    )
    plan = migrate(server, postgres, "pgmq", "pgmq-here", "--dry-run")
    assert [(one["name"], one["ready"], one["in_progress"], one["delayed"]) for one in plan["queues"]] == [
        ("mail", 1, 1, 1)
    ]
    assert migrate(server, postgres, "pgmq", "pgmq-here")["added"] == 3
    assert migrate(server, postgres, "pgmq", "pgmq-here")["added"] == 0
    assert client.tenant("pgmq-here").queue("mail").stats().delayed == 1
    assert [one["n"] for one in ready(client, "pgmq-here", "mail")] == [1, 2]


def test_river_jobs_by_priority_and_state(
    server: Served, client: Client, postgres: str, database: psycopg.Connection[Any]
) -> None:
    """Priority 1 comes first; discarded jobs become dead letters with their last error; finished jobs are left out."""
    client.tenant("river-here").configure()
    database.execute(
        "insert into river_job (args, kind, priority, state, scheduled_at, errors) values"
        """ ('{"n": 1}', 'mail', 4, 'available', now(), null), ('{"n": 2}', 'mail', 1, 'running', now(), null),"""
        """ ('{"n": 3}', 'mail', 1, 'scheduled', now() + interval '1 h', null), ('{"n": 4}', 'mail', 1, 'completed', now(), null),"""
        """ ('{"n": 5}', 'mail', 1, 'discarded', now(), array['{"error": "no mail"}'::jsonb])"""
    )
    assert migrate(server, postgres, "river", "river-here", "--queue", "jobs")["added"] == 4
    assert [one["n"] for one in ready(client, "river-here", "jobs")] == [2, 1]
    assert client.tenant("river-here").queue("jobs").stats().delayed == 1
    (letter,) = client.tenant("river-here").queue("jobs-dlq").peek().messages
    assert letter.dead is not None
    assert letter.dead.reason == "no mail"


def test_procrastinate_jobs_are_drained_and_locked_rows_left_alone(
    server: Served, client: Client, postgres: str, database: psycopg.Connection[Any]
) -> None:
    """A row that a worker holds stays; everything else is deleted once it is stored."""
    client.tenant("procrastinate-here").configure()
    database.execute(
        "insert into procrastinate_jobs (queue_name, task_name, args, lock)"
        " select 'sums', 'add', jsonb_build_object('n', n), 'g' || n % 2 from generate_series(1, 1200) n"
    )
    with psycopg.connect(postgres) as worker:
        worker.execute("select * from procrastinate_jobs where id = 7 for update")
        report = migrate(server, postgres, "procrastinate", "procrastinate-here", "--mode", "drain", code=7)
        assert (report["added"], report["left"]) == (1_199, 1)
    assert migrate(server, postgres, "procrastinate", "procrastinate-here", "--mode", "drain")["added"] == 1
    (left,) = database.execute("select count(*) from procrastinate_jobs").fetchone() or (None,)
    assert left == 0
    assert client.tenant("procrastinate-here").queue("sums").poll(max=1)[0].attributes["procrastinate-task"] == "add"


def test_unfinished_good_job_rows_are_migrated(
    server: Served, client: Client, postgres: str, database: psycopg.Connection[Any]
) -> None:
    """The body is the serialized job."""
    client.tenant("good-job-here").configure()
    database.execute(
        "insert into good_jobs (queue_name, priority, serialized_params, scheduled_at, finished_at) values"
        """ ('mail', 0, '{"job_class": "Mail"}', null, null), ('mail', 0, '{"job_class": "Done"}', null, now())"""
    )
    assert migrate(server, postgres, "good-job", "good-job-here")["added"] == 1
    assert ready(client, "good-job-here", "mail") == [{"job_class": "Mail"}]


def test_database_without_the_table_is_refused(server: Served, postgres: str) -> None:
    """The exit code is 2, and 6 if the database does not respond."""
    url = postgres.replace("/postgres", "/template1")
    done = server.call("migrate-from", "river", url)
    assert (done.code, "no table river_job was found" in done.err) == (2, True)
    done = server.call("migrate-from", "river", "postgresql://test@127.0.0.1:1/x")
    assert (done.code, "does not answer" in done.err, len(done.err.splitlines())) == (6, True, 1), done.err
