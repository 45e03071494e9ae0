"""Behaviour 55: with encryption on, nothing that a real server writes, returns or logs contains plaintext."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest
from pyarrow import parquet

from tenantq import AsyncClient
from tenantq.errors import Conflict, TenantqError
from tenantq.journal.export_settings import ExportSettings
from tenantq.server import Server
from tenantq.settings import ServerSettings
from tests.contract.http.real_server import ADMIN

if TYPE_CHECKING:
    from pathlib import Path

    from tenantq.client import AsyncTenant


def server(data_dir: Path) -> Server:
    """Return a server that exports its journal, as by default."""
    settings = ServerSettings(
        data_dir=str(data_dir), http="127.0.0.1:0", export=ExportSettings(enabled=True), log_level="debug"
    )
    return Server(settings, admin_token=ADMIN)


class Marks:
    """Unique texts, random so that compression cannot make them unrecognizable in a log or table."""

    def __init__(self) -> None:
        self.body, self.result, self.error, self.attribute = (os.urandom(20).hex() for _ in range(4))

    @property
    def all(self) -> set[str]:
        return {self.body, self.result, self.error, self.attribute}


async def run_full_lifecycle(acme: AsyncTenant, marks: Marks) -> list[str]:
    """Add, refuse, deliver, fail, complete and read messages; return the error texts."""
    queue, said = acme.queue("work"), []
    await queue.configure(max_attempts=1)
    secret = {"secret_token": marks.attribute}
    for number in range(3):
        await queue.add(f"{marks.body} {number}", key=f"k{number}", attributes=secret, group=f"g{number}")
    try:
        await queue.add("another body", key="k0", attributes=secret)
    except Conflict as error:
        said.append(str(error))
    try:
        await queue.add(marks.body, priority=99, attributes=secret)
    except TenantqError as error:
        said.append(str(error))
    first, second, third = await queue.poll(3)
    assert first.text.startswith(marks.body)
    assert first.attributes == secret
    await first.ack(result=marks.result.encode())
    await second.fail(marks.error)
    await third.nack(reason="no luck")
    assert (await queue.result(first.id)).value == marks.result.encode()
    assert (await queue.result(second.id)).error == marks.error
    (letter,) = (await acme.queue("work-dlq").peek()).messages
    assert letter.text.startswith(marks.body)
    await queue.trace(first.id)
    return said


def written(data_dir: Path) -> bytes:
    """Return the raw bytes of every file, and the decompressed columns of Parquet files."""
    found = [path.read_bytes() for path in data_dir.rglob("*") if path.is_file()]
    segments = list(data_dir.rglob("*.parquet"))
    assert segments, "the journal was exported"
    found += [repr(parquet.read_table(segment).to_pylist()).encode() for segment in segments]
    return b"\n".join(found)


@pytest.mark.parametrize("encrypted", [True, False])
async def test_55_files_logs_metrics_and_errors_contain_no_plaintext(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    encrypted: bool,  # noqa: FBT001  # off: to see that the search finds what is there
) -> None:
    """Covers bodies, secret attributes, results and errors in all files, also after a restart."""
    caplog.set_level(logging.DEBUG)
    data_dir, marks = tmp_path / "data", Marks()
    async with server(data_dir) as one, AsyncClient(f"http://127.0.0.1:{one.port}", token=ADMIN) as admin:
        acme = admin.tenant("acme")
        await acme.configure(encryption={"enabled": encrypted})
        said = await run_full_lifecycle(acme, marks)
        said.append(await admin.metrics())
        while_open = b"".join(path.read_bytes() for path in (data_dir / "db").iterdir())
        one.shard.state.store.files.flush()  # so that everything is in tables too
    async with server(data_dir) as one, AsyncClient(f"http://127.0.0.1:{one.port}", token=ADMIN) as admin:
        (letter,) = (await admin.tenant("acme").queue("work-dlq").peek()).messages
        assert letter.text.startswith(marks.body)
        assert letter.encrypted is encrypted
    files = while_open + written(data_dir)
    texts = "\n".join([*said, caplog.text, *(str(vars(record)) for record in caplog.records)])
    assert {mark for mark in marks.all if mark.encode() in files} == (set() if encrypted else marks.all)
    assert not [mark for mark in marks.all if mark in texts]
    if encrypted:  # files of other users are skipped
        for name in ("keyring.json", "keyring.key"):
            assert (data_dir / name).stat().st_mode & 0o777 == 0o600
