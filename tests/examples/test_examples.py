"""The examples work as their first lines say, each in its own process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tenantq import Client
from tests.acceptance.command import ADMIN_TOKEN, serving
from tests.docs.prose import PROJECT
from tests.pipeline.conftest import FAST_STARTUP, SMALL_DATA
from tests.redis_servers import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.command import Served

EXAMPLES = PROJECT / "examples"
SECONDS_MAX = 60


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the server."""
    return tmp_path_factory.mktemp("examples") / "data"


@pytest.fixture(scope="module")
def server(data_dir: Path) -> Iterator[Served]:
    """Run the server that the examples talk to."""
    with serving(data_dir) as served:
        yield served


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    """Connect as the administrator."""
    with Client(server.url, ADMIN_TOKEN) as found:
        yield found


def key(server: Served, tenant: str, role: str) -> dict[str, str]:
    """Create a tenant, and return the ID, secret and token of a new key."""
    server.ok("tenant", "create", tenant, "--json")
    found: dict[str, str] = server.ok("key", "create", "example", "--tenant", tenant, "--role", role, "--json").json
    return found


def run(server: Served, *command: object, cwd: Path = EXAMPLES, **variables: str) -> str:
    """Run a command until it exits and return its output."""
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=server.environment(**variables), capture_output=True, text=True,
        timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(server: Served, *command: object, cwd: Path = EXAMPLES, **variables: str) -> Iterator[Iterator[str]]:
    """Run a command in the background, and yield the lines it prints."""
    process = subprocess.Popen(
        list(map(str, command)), cwd=cwd, env=server.environment(**variables), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    late = threading.Timer(SECONDS_MAX, process.kill)
    late.start()
    try:
        yield iter(process.stdout)
    finally:
        late.cancel()
        process.terminate()
        process.communicate(timeout=SECONDS_MAX)


def wait_for(lines: Iterator[str], *wanted: str) -> None:
    """Read lines until each text has appeared."""
    left, seen = set(wanted), list[str]()
    for line in lines:
        seen.append(line)
        left -= {text for text in left if text in line}
        if not left:
            return
    raise AssertionError(f"not printed: {left}; printed: {''.join(seen)}")


def answers(client: httpx.Client, path: str) -> None:
    """Wait until a web server answers."""
    for _ in range(SECONDS_MAX * 10):
        try:
            client.get(path)
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("no answer")


def test_fastapi_isolates_customers(server: Served, client: Client) -> None:
    """Orders go to the customer's own queue, repeated ones once; the report of another customer is unknown."""
    for name in ("fast-acme", "fast-globex"):
        client.tenant(name).configure()
    client.tenant("fast-globex").configure(quotas={"backlog": 1})
    port = free_port()
    keys = json.dumps({"key-a": "fast-acme", "key-g": "fast-globex"})
    command = [sys.executable, "-m", "uvicorn", "fastapi_app:app", "--port", port]
    acme, globex = {"X-API-Key": "key-a", "Idempotency-Key": "once"}, {"X-API-Key": "key-g"}
    with running(server, *command, CUSTOMER_KEYS=keys), httpx.Client(base_url=f"http://127.0.0.1:{port}") as web:
        answers(web, "/docs")
        ordered, again = (web.post("/reports", json={"title": "October"}, headers=acme) for _ in range(2))
        assert (ordered.status_code, again.json()) == (202, ordered.json())
        path = f"/reports/{ordered.json()['id']}"
        assert web.get(path, headers=acme).json()["status"] == "pending"
        (message,) = client.tenant("fast-acme").queue("reports").poll(10)
        message.ack({"pages": 3, "title": message.json()["title"]})
        assert web.get(path, headers=acme).json()["report"] == {"pages": 3, "title": "October"}
        assert web.get(path, headers=globex).status_code == 404
        assert web.post("/reports", json={"title": "x"}, headers={"X-API-Key": "guess"}).status_code == 401
        fits, full = (web.post("/reports", json={"title": "x"}, headers=globex) for _ in range(2))
        assert (fits.status_code, full.status_code, full.headers["Retry-After"]) == (202, 429, "1")


def test_django_adds_on_commit_and_its_command_consumes(server: Served, tmp_path: Path) -> None:
    """A view stores an order and adds a message; the management command confirms it."""
    token = key(server, "django-shop", "tenant-admin")["token"]
    variables = {
        "TENANTQ_TOKEN": token,
        "SHOP_DATABASE": str(tmp_path / "shop.sqlite3"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    shop, port = EXAMPLES / "django_shop", free_port()
    run(server, sys.executable, "manage.py", "migrate", "--run-syncdb", cwd=shop, **variables)
    serve = [sys.executable, "manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"]
    with running(server, *serve, cwd=shop, **variables), httpx.Client(base_url=f"http://127.0.0.1:{port}") as web:
        answers(web, "/")
        placed = web.post("/orders", data={"email": "ann@example.com"})
        assert (placed.status_code, placed.json()) == (202, {"id": 1})
        assert web.get("/orders/1").json()["confirmed"] is False
        run(server, sys.executable, "manage.py", "run_worker", "--burst", cwd=shop, **variables)
        assert web.get("/orders/1").json() == {"id": 1, "email": "ann@example.com", "confirmed": True}


def test_celery_works_through_sqs(server: Served, client: Client) -> None:
    """One process sends tasks and another executes them, a delayed one later."""
    made = key(server, "celery-shop", "tenant-admin")
    broker = f"sqs://{made['key_id']}:{made['secret']}@{server.url.removeprefix('http://')}"
    command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--pool", "solo", "--loglevel", "INFO"]
    with running(server, *command, CELERY_BROKER_URL=broker) as lines:
        run(server, sys.executable, "celery_app.py", CELERY_BROKER_URL=broker)
        mails = ("welcome to ann", "welcome to bob", "how-is-it-going to eve")
        wait_for(lines, *(f"sent {mail}@example.com" for mail in mails))
    assert [queue.name for queue in client.tenant("celery-shop").queues()] == ["celery"]


def test_fleet_serves_exactly_the_tenants_that_granted_access(server: Served, client: Client) -> None:
    """Messages of other tenants are not delivered."""
    fleet = server.ok("key", "create", "fleet", "--tenant", "default", "--role", "consumer", "--json").json
    for name in ("fleet-a", "fleet-b", "fleet-c"):
        client.tenant(name).configure()
        client.tenant(name).queue("thumbnails").add({"name": f"{name}.png"})
    for name in ("fleet-a", "fleet-b"):
        server.ok("grant", "put", f"key:{fleet['key_id']}", "--tenant", name, "--role", "consumer")
    printed = run(server, sys.executable, "worker_fleet.py", "--burst", TENANTQ_TOKEN=fleet["token"])
    assert sorted(printed.splitlines()) == ["fleet-a: fleet-a.png to 200 pixels", "fleet-b: fleet-b.png to 200 pixels"]
    assert client.tenant("fleet-c").queue("thumbnails").stats().ready == 1


def test_typescript_works_through_sqs(server: Served, client: Client) -> None:
    """It compiles, sends, receives and deletes."""
    example = EXAMPLES / "typescript"
    if shutil.which("npm") is None or not (example / "node_modules").exists():
        pytest.skip("needs Node.js with npm, and what npm installs in examples/typescript: run make test")
    made = key(server, "typed-shop", "tenant-admin")
    printed = run(
        server, "npm", "start", "--silent", cwd=example,
        AWS_ACCESS_KEY_ID=made["key_id"], AWS_SECRET_ACCESS_KEY=made["secret"],
    )  # fmt: skip
    assert sorted(printed.splitlines()) == ["packed chair for order 2", "packed lamp for order 1"]
    stats: Any = client.tenant("typed-shop").queue("orders").stats()
    assert (stats.ready, stats.in_flight) == (0, 0)


def test_spark_reads_the_usage_of_every_tenant(tmp_path: Path) -> None:
    """The journal is that of a stopped server."""
    data = tmp_path / "data"
    with serving(data) as server, Client(server.url, ADMIN_TOKEN) as client:
        for name, count in (("big-one", 5), ("small-one", 2)):
            client.tenant(name).configure()
            queue = client.tenant(name).queue("mail")
            queue.add_many(b"x" * 100 for _ in range(count))
            queue.poll(1)[0].ack()
        server.process.terminate()
        server.process.wait(SECONDS_MAX)
        settings = {"spark.driver.defaultJavaOptions": FAST_STARTUP, "spark.ui.enabled": "false", **SMALL_DATA}
        (tmp_path / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        variables = {"SPARK_CONF_DIR": str(tmp_path), "SPARK_MASTER": "local[2]", "PYSPARK_PYTHON": sys.executable}
        printed = run(server, sys.executable, "spark_usage.py", data / "journal", cwd=EXAMPLES, **variables)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if "mail" in line]
    assert [row[:5] for row in rows] == [["big-one", "mail", "5", "1", "500"], ["small-one", "mail", "2", "1", "200"]]
    assert all(int(row[5]) >= 0 for row in rows)


def test_readme_lists_every_example() -> None:
    """README.md names every example."""
    listed = (EXAMPLES / "README.md").read_text()
    names = {one.name for one in EXAMPLES.iterdir()} - {"README.md", "__pycache__"}
    assert [name for name in sorted(names) if f"[{name}](" not in listed] == []
