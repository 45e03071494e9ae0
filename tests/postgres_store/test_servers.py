"""Servers and schemas that cannot be used: one clear error each, and nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.errors import Invalid, StoreFailed, StoreFormat
from tests.postgres_servers import OnPostgres, PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tenantq.store.postgres.store import PostgresStore


class At:
    """An address in place of a server."""

    def __init__(self, url: str) -> None:
        self.url = url


def opened(
    server: PostgresServer, tmp_path: Path, url: str | None = None, durability: str = "os", patience_ms: int = 300
) -> PostgresStore:
    """Open a store, with little patience."""
    opener = OnPostgres(At(url or server.url), tmp_path / "data", durability, name="refused", patience_ms=patience_ms)  # type: ignore[arg-type]  # one of two
    return opener.open()


@pytest.fixture
def untouched(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """Return a server, and check that nothing was created in it."""
    yield postgres_server
    assert postgres_server.execute("SELECT to_regnamespace('refused')") == [(None,)]


def test_a_server_that_does_not_sync_is_refused_unless_that_is_asked_for(
    untouched: PostgresServer, tmp_path: Path
) -> None:
    """This one runs with fsync = off."""
    with pytest.raises(Invalid, match=r"fsync is off.*durability"):
        opened(untouched, tmp_path, durability="fsync")


def test_a_wrong_password_is_access_denied(untouched: PostgresServer, tmp_path: Path) -> None:
    """And the password is not shown."""
    file = untouched.directory / "data" / "pg_hba.conf"
    before = file.read_text()
    untouched.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
    try:
        file.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + before)
        untouched.execute("SELECT pg_reload_conf()")
        url = untouched.url.replace("test@", "guarded:s3cret@")
        with pytest.raises(StoreFailed, match=r"access denied\. Check user and password") as refused:
            opened(untouched, tmp_path, url)
        assert "s3cret" not in str(refused.value)
    finally:
        file.write_text(before)
        untouched.execute("SELECT pg_reload_conf()")
        untouched.execute("DROP ROLE guarded")


def test_a_missing_database_says_so(untouched: PostgresServer, tmp_path: Path) -> None:
    """It is not created."""
    with pytest.raises(StoreFailed, match="the database does not exist"):
        opened(untouched, tmp_path, untouched.url.replace("/postgres", "/nowhere"))


def test_a_database_of_another_encoding_is_refused(untouched: PostgresServer, tmp_path: Path) -> None:
    """Names would be stored as other bytes."""
    untouched.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        with pytest.raises(Invalid, match="has the encoding LATIN1"):
            opened(untouched, tmp_path, untouched.url.replace("/postgres", "/latin"))
    finally:
        untouched.execute("DROP DATABASE latin")


def test_a_server_that_is_read_only_is_not_the_primary(untouched: PostgresServer, tmp_path: Path) -> None:
    """As a standby says."""
    untouched.execute("CREATE DATABASE quiet")
    try:
        untouched.execute("ALTER DATABASE quiet SET default_transaction_read_only = on")
        with pytest.raises(StoreFailed, match="standby or read-only"):
            opened(untouched, tmp_path, untouched.url.replace("/postgres", "/quiet"))
    finally:
        untouched.execute("DROP DATABASE quiet")


def test_a_server_without_free_connections_says_so(untouched: PostgresServer, tmp_path: Path) -> None:
    """After the patience: one may become free."""
    untouched.execute("CREATE ROLE narrow LOGIN CONNECTION LIMIT 0")
    try:
        with pytest.raises(StoreFailed, match="too many connections"):
            opened(untouched, tmp_path, untouched.url.replace("test@", "narrow@"))
    finally:
        untouched.execute("DROP ROLE narrow")


def test_a_role_that_may_not_create_the_schema_is_told_so(untouched: PostgresServer, tmp_path: Path) -> None:
    """At once."""
    untouched.execute("CREATE ROLE small LOGIN")
    try:
        with pytest.raises(StoreFailed, match="permission denied"):
            opened(untouched, tmp_path, untouched.url.replace("test@", "small@"))
    finally:
        untouched.execute("DROP ROLE small")


def test_a_server_that_is_away_is_retried_for_the_patience(tmp_path: Path, postgres_server: PostgresServer) -> None:
    """And named."""
    with pytest.raises(StoreFailed, match=r"127.0.0.1:1/postgres: .*retried for"):
        opened(postgres_server, tmp_path, "postgresql://test@127.0.0.1:1/postgres")


def test_a_schema_of_another_program_is_not_touched(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """The name may be in use."""
    postgres_server.execute("CREATE SCHEMA refused")
    postgres_server.execute("CREATE TABLE refused.theirs (n integer)")
    with pytest.raises(StoreFormat, match="tables of another program"):
        opened(postgres_server, tmp_path)
    assert postgres_server.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'refused'") == [(1,)]


def test_a_schema_of_another_format_is_not_touched(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """It belongs to another version."""
    opened(postgres_server, tmp_path).close()
    postgres_server.execute("UPDATE refused.format SET format = '9'")
    before = postgres_server.execute("SELECT * FROM refused.shards")
    with pytest.raises(StoreFormat, match="has format 9"):
        opened(postgres_server, tmp_path)
    assert postgres_server.execute("SELECT * FROM refused.shards") == before


def test_an_erased_row_is_in_no_file_of_the_table(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Plain VACUUM would leave its bytes in the pages."""
    store = opened(postgres_server, tmp_path, patience_ms=4_000)
    batch = store.new_batch()
    batch.put(b"secret", b"plainly-seen-7f3a", store.meta.handle)
    store.write(batch)
    postgres_server.execute("CHECKPOINT")
    assert _files_with(postgres_server, b"plainly-seen-7f3a")
    gone = store.new_batch()
    gone.delete(b"secret", store.meta.handle)
    store.write(gone)
    store.files.erase(b"", b"\xff")
    store.close()
    postgres_server.execute("CHECKPOINT")
    assert _files_with(postgres_server, b"plainly-seen-7f3a") == []


@pytest.mark.parametrize("table", ["shards", "rows_0"])
def test_an_erasure_is_incomplete_while_a_transaction_can_see_the_rows(
    postgres_server: PostgresServer, tmp_path: Path, table: str
) -> None:
    """PostgreSQL keeps them then, even when it writes new files, which it cannot while another transaction has read the table."""
    store = opened(postgres_server, tmp_path, patience_ms=4_000)
    batch = store.new_batch()
    batch.put(b"secret", b"plainly-seen-7f3a", store.meta.handle)
    store.write(batch)
    with postgres_server.connect() as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute(f"SELECT count(*) FROM refused.{table}")  # noqa: S608  # of this file
        gone = store.new_batch()
        gone.delete(b"secret", store.meta.handle)
        store.write(gone)
        assert not store.files.erase(b"", b"\xff")
        other.execute("COMMIT")
    assert store.files.erase(b"", b"\xff")
    store.close()


def _files_with(server: PostgresServer, text: bytes) -> list[str]:
    base = server.directory / "data" / "base"
    return [file.name for file in base.rglob("*") if file.is_file() and text in file.read_bytes()]
