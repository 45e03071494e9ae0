"""``tenantq migrate-from rabbitmq``, from a real RabbitMQ."""

from __future__ import annotations

import pika

from tenantq import Client
from tests.acceptance.command import ADMIN_TOKEN, Served


def test_rabbitmq_queues_are_drained_with_unacknowledged_deliveries(server: Served, rabbitmq: str) -> None:
    """Order, headers and priorities are kept; nothing remains, and a second run adds nothing."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq))
    channel = connection.channel()
    channel.queue_declare("orders")
    for number in range(700):
        properties = pika.BasicProperties(message_id=f"id{number}", headers={"shade": "red"}, priority=number % 2)
        channel.basic_publish("", "orders", b"m%d" % number, properties)
    channel.basic_publish("", "orders", b"same")
    channel.basic_publish("", "orders", b"same")
    with Client(server.url, ADMIN_TOKEN) as client:
        tenant = client.tenant("rabbit-here")
        tenant.configure()
        command = ("migrate-from", "rabbitmq", rabbitmq, "orders", "--tenant", "rabbit-here", "--json")
        assert server.ok(*command, "--dry-run").json["messages"] == 702
        report = server.ok(*command).json
        assert (report["added"], report["left"]) == (702, 0)
        assert server.ok(*command).json["added"] == 0
        got = tenant.queue("orders").poll(max=1_000)
        assert [message.body for message in got if message.priority][:3] == [b"m1", b"m3", b"m5"]
        assert got[0].attributes["header-shade"] == "red"
    connection.close()


def test_unreachable_broker_is_a_one_line_error(server: Served) -> None:
    """The exit code is 6."""
    done = server.call("migrate-from", "rabbitmq", "amqp://127.0.0.1:1/", "orders")
    assert (done.code, len(done.err.splitlines())) == (6, 1), done
