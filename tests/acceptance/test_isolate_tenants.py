"""The guide from one shared queue to isolated tenants: every command, in order, prints what the page shows."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.acceptance.command import COMMAND, environment
from tests.docs.prose import PROJECT
from tests.docs.sessions import Step, run_session, steps
from tests.redis_servers import free_port
from tests.sources.queueber_store import QueueberStore, uuid7

SECONDS_MAX = 120


def test_every_command_of_the_four_phases_works(tmp_path: Path) -> None:
    """The phases lead from a Queueber store to strict mode."""
    store = QueueberStore(tmp_path / "queueber-data")
    for number in range(3):
        store.add(uuid7(int(time.time() * 1_000), number), b"item %d" % number, int(time.time()) - 10)
    store.close()
    port = free_port()
    variables = environment(
        PATH=f"{Path(COMMAND).parent}{os.pathsep}{os.environ['PATH']}",
        XDG_CONFIG_HOME=str(tmp_path),
        TENANTQ_HTTP=f"127.0.0.1:{port}",
        TENANTQ_URL=f"http://127.0.0.1:{port}",
    )
    session = steps((PROJECT / "docs" / "how-to" / "isolate-tenants.md").read_text())
    assert len(session) > 15
    differences = run_session([*session, Step("kill %1", "")], tmp_path, variables, SECONDS_MAX)
    assert not differences, "\n\n".join(differences)
