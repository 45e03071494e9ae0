"""Real PostgreSQL servers for tests: on free ports of this machine, in directories of their own, stopped by their process ids."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psycopg

from tenantq.store.postgres.address import parse_postgres_address
from tenantq.store.postgres.client import PostgresClient
from tenantq.store.postgres.settings import PostgresSettings
from tenantq.store.postgres.shard_reader import ShardReader
from tenantq.store.postgres.store import PostgresStore
from tenantq.store.shard_lease import ShardHeld
from tests.redis_servers import free_port

if TYPE_CHECKING:
    from tenantq.store.shard_lease import ReleaseSignal

_START_S = 30.0
STANDBY = "standby"
"""What the primary calls its standby."""


def tool(name: str) -> str:
    """Return the path of a program of PostgreSQL; Debian keeps them off the PATH."""
    debian = [str(version / "bin") for version in sorted(Path("/usr/lib/postgresql").glob("*"))]
    for directory in (*os.environ["PATH"].split(":"), *debian):
        if os.access(f"{directory}/{name}", os.X_OK):
            return f"{directory}/{name}"
    raise FileNotFoundError(f"{name}: install PostgreSQL, as make test does")


class PostgresServer:
    """One PostgreSQL server, which refuses to run as root."""

    def __init__(self, *options: str, port: int | None = None, standby_of: PostgresServer | None = None) -> None:
        """Create a database cluster, or a standby of another server, and start it; ``options`` are settings, ``name=value``.

        Its directory is not in pytest's, which other users cannot read.
        """
        self.options = options
        self.directory = Path(tempfile.mkdtemp(prefix="tenantq-postgres-"))
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._as_user: list[str] = []
        if os.getuid() == 0:
            os.chown(self.directory, pwd.getpwnam("nobody").pw_uid, -1)
            self._as_user = ["setpriv", "--reuid=nobody", "--clear-groups"]
        if standby_of is None:
            self._run("initdb", "-U", "test", "-A", "trust", "-N", "--locale=C", "-E", "UTF8")
        else:
            source = f"host=127.0.0.1 port={standby_of.port} user=test application_name={STANDBY}"
            self._run("pg_basebackup", "-d", source, "-R", "-c", "fast", "-X", "stream")
        self.start()

    def _run(self, name: str, *arguments: str) -> None:
        command = [*self._as_user, tool(name), "-D", str(self.directory / "data"), *arguments]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

    def start(self) -> None:
        """Start the process, again if it was ended."""
        settings = [part for option in ("max_connections=200", *self.options) for part in ("-c", option)]
        where = ["-D", str(self.directory / "data"), "-k", str(self.directory), "-h", "127.0.0.1", "-p", str(self.port)]
        with (self.directory / "log").open("ab") as out:
            self.process = subprocess.Popen(
                [*self._as_user, tool("postgres"), *where, *settings], stdout=out, stderr=subprocess.STDOUT
            )
        ends = time.monotonic() + _START_S
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError:
                assert self.process.poll() is None, (self.directory / "log").read_text()
                assert time.monotonic() < ends
                time.sleep(0.02)
            else:
                return

    @property
    def url(self) -> str:
        """The address as ``--store`` takes it."""
        return f"postgresql://test@127.0.0.1:{self.port}/postgres"

    def connect(self) -> psycopg.Connection[Any]:
        """Return a connection, for looking and for setting."""
        return psycopg.connect(self.url, autocommit=True, connect_timeout=5)

    def execute(self, statement: str) -> list[Any]:
        """Run one statement and return its rows."""
        with self.connect() as connection:
            cursor = connection.execute(statement)
            return list(cursor.fetchall()) if cursor.description is not None else []

    def clear(self) -> None:
        """Drop all schemas of stores."""
        found = self.execute("SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_|^public$|^information_schema$'")
        for (name,) in found:
            self.execute(f'DROP SCHEMA "{name}" CASCADE')

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait_for_standby(self) -> None:
        """Let commits wait for the standby from now on, and return when it takes part."""
        self.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{STANDBY}'")
        self.execute("SELECT pg_reload_conf()")
        self.until("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'")

    def promote(self) -> None:
        """Make a standby the primary."""
        assert self.execute("SELECT pg_promote()") == [(True,)]

    def until(self, query: str) -> Any:
        """Wait until a query returns a row, and return the first one."""
        ends = time.monotonic() + _START_S
        while not (rows := self.execute(query)):
            assert time.monotonic() < ends, query
            time.sleep(0.02)
        return rows[0]

    def crash(self) -> None:
        """End the server at once, as ``pg_ctl stop -m immediate``: it recovers from its log at the next start."""
        self.signal(signal.SIGQUIT)
        assert self.process is not None
        self.process.wait(30)

    def stop(self) -> None:
        """End the server without waiting for clients, and remove its files."""
        assert self.process is not None
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGINT)
            self.process.wait(30)
        shutil.rmtree(self.directory)


class OnPostgres:
    """Opens the store of a shard on a server, under a name that goes with the shard's directory."""

    def __init__(self, server: Any, path: Path, durability: Literal["fsync", "os"] = "os", **settings: object) -> None:
        name = "t" + hashlib.blake2b(str(path).encode(), digest_size=8).hexdigest()
        self.path = path
        self.settings = PostgresSettings(**{"name": name, **settings})  # type: ignore[arg-type]  # each by its name
        self.client = PostgresClient(parse_postgres_address(server.url), self.settings, durability)

    def open(self, shard: str = "0", wait_ms: int = 0, released: ReleaseSignal | None = None) -> PostgresStore:
        """Open it, to own it. Raises ShardHeld while another owns it."""
        return PostgresStore(self.path, self.client, shard, wait_ms=wait_ms, released=released)

    async def __call__(self, shard: str) -> PostgresStore:
        """Open it as soon as its owner is gone."""
        while True:
            try:
                return await asyncio.to_thread(self.open, shard)
            except ShardHeld as held:
                await asyncio.sleep(min(held.left_ms, 500) / 1_000)

    def to_read(self, path: Path) -> ShardReader:
        """Open it for the doctor, whether or not a server owns it."""
        return ShardReader(path, self.client, "0")

    while_owned = to_read
