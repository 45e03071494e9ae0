"""One fleet of workers for all tenants.

The fleet's key has a grant in every tenant that it serves. Tenants take turns by weight, so a busy one delays no other.

    tenantq key create fleet --role consumer --json
    tenantq grant put key:KEY_ID --tenant acme --role consumer --queue thumbnails
    TENANTQ_TOKEN=tq_… python worker_fleet.py
"""

import os
import sys

from msgspec import Struct

from tenantq import Worker
from tenantq.client import Message

worker = Worker(
    os.environ.get("TENANTQ_URL", "http://127.0.0.1:7070"), os.environ["TENANTQ_TOKEN"], fleet=True, concurrency=20
)


class Picture(Struct):
    """The body of a message."""

    name: str
    width: int = 200


@worker.task("thumbnails", timeout_ms=30_000, result=True)
def shrink(picture: Picture, message: Message) -> dict[str, str]:
    """Do the work of one message. After an exception it is redelivered, up to the queue's max_attempts."""
    sys.stdout.write(
        f"{message.tenant}: {picture.name} to {picture.width} pixels\n"
    )  # print() can mix lines of threads
    return {"thumbnail": f"{message.tenant}/{picture.width}/{picture.name}"}


if __name__ == "__main__":
    worker.run(burst="--burst" in sys.argv)  # --burst: stop when all queues are empty
