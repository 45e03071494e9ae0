"""Snapshots through the SDK and HTTP."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tenantq.client import Client
from tenantq.errors import Forbidden, NotFound

if TYPE_CHECKING:
    from tests.contract.client.conftest import ServerUnderTest


def test_snapshot_is_read_in_parts_and_closed(client: Client) -> None:
    """Several readers read it."""
    queue = client.queue("mail")
    queue.add_many([f"{number}" for number in range(25)])
    taken = queue.open_snapshot(part_messages=10)
    assert (taken.messages, len(taken.parts)) == (25, 2)
    queue.add("later")
    queue.remove(queue.peek(1).messages[0].id)
    bounds = [None, *taken.parts, None]
    found = [
        message.text
        for start, end in pairwise(bounds)
        for message in queue.read_snapshot(taken.snapshot, start=start, end=end).messages
    ]
    assert found == [f"{number}" for number in range(25)]
    queue.close_snapshot(taken.snapshot)
    with pytest.raises(NotFound, match="no such snapshot"):
        queue.read_snapshot(taken.snapshot)


def test_snapshot_bodies_need_the_right_to_read_them(server: ServerUnderTest, client: Client) -> None:
    """A viewer sees messages without bodies; a producer cannot open a snapshot."""
    client.tenant("acme").configure()
    client.tenant("acme").queue("mail").add("geheim")
    with Client(settings=server.settings("acme", role="viewer")) as viewer:
        taken = viewer.queue("mail").open_snapshot()
        (message,) = viewer.queue("mail").read_snapshot(taken.snapshot).messages
        assert (message.body, message.hidden, message.size) == (b"", True, 6)
    with Client(settings=server.settings("acme", role="producer")) as producer, pytest.raises(Forbidden):
        producer.queue("mail").open_snapshot()
