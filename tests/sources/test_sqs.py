"""``tenantq migrate-from sqs``, from another SQS endpoint: that of a second tenantq server."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from tenantq import Client
from tests.acceptance.command import ADMIN_TOKEN, COMMAND, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.command import Served


@pytest.fixture
def old(tmp_path: Path) -> Iterator[tuple[Served, Any]]:
    """Run the server to migrate from, with an SQS client of a tenant."""
    with serving(tmp_path / "old") as served, Client(served.url, ADMIN_TOKEN) as client:
        client.tenant("source").configure()
        key = client.tenant("source").create_key("sqs", role="tenant-admin")
        access = {"aws_access_key_id": key.key_id, "aws_secret_access_key": key.secret, "region_name": "eu-west-1"}
        yield served, (boto3.client("sqs", endpoint_url=served.url, **access), access)


def _variables(access: dict[str, str]) -> dict[str, Any]:
    return {
        "AWS_ACCESS_KEY_ID": access["aws_access_key_id"],
        "AWS_SECRET_ACCESS_KEY": access["aws_secret_access_key"],
        "AWS_DEFAULT_REGION": "eu-west-1",
    }


def test_sqs_queues_are_drained_with_leases(server: Served, old: tuple[Served, Any]) -> None:
    """Attributes and groups are kept; nothing remains at the source, and a second run adds nothing."""
    source, (sqs, access) = old
    url = sqs.create_queue(QueueName="orders")["QueueUrl"]
    fifo = sqs.create_queue(QueueName="orders.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    for number in range(25):
        shade = {"shade": {"DataType": "String", "StringValue": f"s{number}"}}
        sqs.send_message(QueueUrl=url, MessageBody=f"m{number}", MessageAttributes=shade)
    for number in range(3):
        sqs.send_message(
            QueueUrl=fifo, MessageBody=f"f{number}", MessageGroupId="g", MessageDeduplicationId=str(number)
        )
    with Client(server.url, ADMIN_TOKEN) as client:
        tenant = client.tenant("sqs-here")
        tenant.configure()
        variables = _variables(access)
        command = ("migrate-from", "sqs", source.url, "orders", "orders.fifo", "--tenant", "sqs-here", "--json")
        report = server.ok(*command, **variables).json
        assert (report["added"], report["left"], report["mode"]) == (28, 0, "drain")
        assert server.ok(*command, **variables).json["added"] == 0
        got = tenant.queue("orders").poll(max=100)
        assert sorted(message.body for message in got) == sorted(b"m%d" % n for n in range(25))
        assert {message.attributes["shade"] for message in got} == {f"s{n}" for n in range(25)}
        (first,) = tenant.queue("orders.fifo").poll(max=10)
        assert (first.body, first.group) == (b"f0", "g")


def test_killed_migration_resumes_when_its_leases_end(server: Served, old: tuple[Served, Any]) -> None:
    """After three kills every message is there once. Until then the command says what remains."""
    source, (sqs, access) = old
    url = sqs.create_queue(QueueName="killed")["QueueUrl"]
    bodies = [f"m{number}" for number in range(2_000)]
    for at in range(0, len(bodies), 10):
        entries = [{"Id": str(n), "MessageBody": body} for n, body in enumerate(bodies[at : at + 10])]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    variables = _variables(access)
    command = ("migrate-from", "sqs", source.url, "killed", "--tenant", "sqs-killed", "--lease", "5s")
    with Client(server.url, ADMIN_TOKEN) as client:
        client.tenant("sqs-killed").configure()
        queue = client.tenant("sqs-killed").queue("killed")
        queue.configure()
        for _ in range(3):
            before = queue.stats().ready
            process = subprocess.Popen(
                [COMMAND, *command], env=server.environment(**variables), stdout=subprocess.DEVNULL
            )
            while process.poll() is None and queue.stats().ready == before:
                time.sleep(0.005)
            process.kill()
            process.wait()
        deadline = time.monotonic() + 60
        while (done := server.call(*command, **variables)).code != 0:
            assert (done.code in {6, 7}, time.monotonic() < deadline) == (True, True), done
            if done.code == 7:
                assert "held by workers or an interrupted run" in done.out + done.err
            time.sleep(0.5)
        got = list[str]()
        while found := queue.poll(max=1_000):
            got += [message.body.decode() for message in found]
    assert sorted(got) == sorted(bodies)
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (counts["ApproximateNumberOfMessages"], counts["ApproximateNumberOfMessagesNotVisible"]) == ("0", "0")


@pytest.mark.parametrize("lease", ["0", "999ms", "13h"])
def test_lease_beyond_the_sqs_limit_is_refused(server: Served, lease: str) -> None:
    """It is refused before any call to SQS."""
    done = server.call("migrate-from", "sqs", "eu-west-1", "orders", "--lease", lease)
    assert (done.code, "--lease: must be 1s to 12h" in done.err) == (2, True)


def test_unknown_queue_is_named(server: Served, old: tuple[Served, Any]) -> None:
    """The error is one line, and nothing changes."""
    source, (_, access) = old
    variables = _variables(access)
    done = server.call("migrate-from", "sqs", source.url, "nothing", **variables)
    assert (done.code, len(done.err.splitlines())) == (6, 1), done
