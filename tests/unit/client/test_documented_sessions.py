"""The Python sessions in the documentation run unchanged against the fake server."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tenantq.client import Client
from tenantq.testing import FakeServer
from tenantq.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).resolve().parents[3] / "docs"


def sessions(name: str) -> list[str]:
    """Return the Python blocks of a page."""
    found = re.findall(r"^( *)```python\n(.*?)^\1```", (DOCS / name).read_text(), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(code) for _, code in found]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """Run a fake server that every address leads to."""
    with FakeServer() as server:
        monkeypatch.setattr("tenantq.client.async_client.parse", lambda *_, **__: server.settings())
        yield server


def test_the_sdk_sessions(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> None:
    """They print the documented output."""
    said = []
    for session in sessions("reference/sdk.md"):
        exec(session, {"__name__": "session"})  # noqa: S102  # the session under test
        said.append(capsys.readouterr().out)
    assert said == [
        "sending to ann@example.com\n{'sent': True}\n",
        "",
        "['urgent', 'first', 'second']\n",
        "[]\n['hello']\n",
    ]


def test_the_worker_sessions(
    server: FakeServer, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module, its use, and a worker with hooks."""
    module, use, hooks = sessions("reference/worker.md")
    (tmp_path / "shop_tasks.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("shop_tasks", None)  # another test has one of that name
    try:
        exec(use, {"__name__": "session"})  # noqa: S102  # the session under test
        assert sorted(capsys.readouterr().out.splitlines()) == ["to ann@example.com", "to bob@example.com"]
        exec(hooks, {"__name__": "session"})  # noqa: S102  # the session under test
        assert capsys.readouterr().out == "begin payments\nend payments\n"
    finally:
        sys.modules.pop("shop_tasks", None)


def test_the_how_to_sessions(server: FakeServer) -> None:
    """Those that need only the SDK: a tenant with limits, a fleet, and a task that replaces a Celery task."""
    (configure,) = sessions("how-to/add-a-tenant.md")
    (fleet,) = sessions("how-to/serve-many-tenants.md")
    _, task = sessions("how-to/move-from-celery.md")
    for session in (configure, fleet, task):
        code = compile(session, "session", "exec", dont_inherit=True)  # without this file's future imports
        exec(code, {"__name__": "session"})  # noqa: S102  # the session under test
    tenant = server.client().tenant("acme").get()
    assert (tenant.config["weight"], tenant.config["quotas"]["backlog"]) == (2, 100_000)


def _documented(page: str) -> set[str]:
    rows = re.findall(r"^\| ?(.*?) \|", (DOCS / "reference" / page).read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize(
    ("kind", "page", "not_there"), [(Client, "sdk.md", {"self", "settings"}), (Worker, "worker.md", {"self", "client"})]
)
def test_every_argument_is_documented(kind: type, page: str, not_there: set[str]) -> None:
    """In a table on its page."""
    names = set(inspect.signature(kind).parameters)
    assert names - not_there <= _documented(page)
