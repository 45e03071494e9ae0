"""A server restored from a backup, as seen by clients of Amazon SQS."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tenantq.backup.restore import restore_backup
from tenantq.errors import Invalid
from tests.contract.sqs.refusals import code
from tests.contract.sqs.sqs_server import SqsServer, client_of

if TYPE_CHECKING:
    from pathlib import Path


def test_keys_sign_again_once_their_signing_file_is_restored(tmp_path: Path) -> None:
    """Without it they are refused, and an invalid file is not accepted."""
    with SqsServer(tmp_path / "data") as server:
        key = server.key()
        client_of(server.url, key.key_id, key.secret).create_queue(QueueName="work")
        made = server.run(server.server.service.backups.create(server.admin))
    (backup,) = tmp_path.glob(f"*/{made.name}")
    with pytest.raises(Invalid, match="key maker"):
        restore_backup(backup, tmp_path / "no", key_maker=tmp_path / "data" / "audit_key")
    assert not restore_backup(backup, tmp_path / "without").key_maker
    assert restore_backup(backup, tmp_path / "with", key_maker=tmp_path / "data" / "key_maker").key_maker
    with SqsServer(tmp_path / "with") as server:
        assert "QueueUrls" in client_of(server.url, key.key_id, key.secret).list_queues()
    with SqsServer(tmp_path / "without") as server:
        assert code(client_of(server.url, key.key_id, key.secret).list_queues) == "InvalidClientTokenId"
