"""``tenantq migrate-from sqs``, from another SQS endpoint: tenantq's own, with a tenant of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import boto3
import pytest

from tenantq import Client
from tests.acceptance.command import ADMIN_TOKEN, serving

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


def test_sqs_queues_are_drained_with_leases(server: Served, old: tuple[Served, Any]) -> None:
    """With attributes and groups; nothing remains at the source, and a second run adds nothing."""
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
        variables = {
            "AWS_ACCESS_KEY_ID": access["aws_access_key_id"],
            "AWS_SECRET_ACCESS_KEY": access["aws_secret_access_key"],
            "AWS_DEFAULT_REGION": "eu-west-1",
        }
        command = ("migrate-from", "sqs", source.url, "orders", "orders.fifo", "--tenant", "sqs-here", "--json")
        report = server.ok(*command, **variables).json
        assert (report["added"], report["left"], report["mode"]) == (28, 0, "drain")
        assert server.ok(*command, **variables).json["added"] == 0
        got = tenant.queue("orders").poll(max=100)
        assert sorted(message.body for message in got) == sorted(b"m%d" % n for n in range(25))
        assert {message.attributes["shade"] for message in got} == {f"s{n}" for n in range(25)}
        (first,) = tenant.queue("orders.fifo").poll(max=10)
        assert (first.body, first.group) == (b"f0", "g")


def test_a_queue_that_does_not_exist_is_named(server: Served, old: tuple[Served, Any]) -> None:
    """With one line, and nothing is changed."""
    source, (_, access) = old
    variables = {
        "AWS_ACCESS_KEY_ID": access["aws_access_key_id"],
        "AWS_SECRET_ACCESS_KEY": access["aws_secret_access_key"],
        "AWS_DEFAULT_REGION": "eu-west-1",
    }
    done = server.call("migrate-from", "sqs", source.url, "nothing", **variables)
    assert (done.code, len(done.err.splitlines())) == (6, 1), done
