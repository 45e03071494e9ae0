"""Requests and replies about backups."""

from typing import Annotated

from tenantq.domain.validation import matching
from tenantq.wire.base_types import Wire, WireReply


class BackupRequest(Wire, frozen=True, kw_only=True):
    """Create a backup, by default named after the time. Without ``segments`` it omits the exported journal."""

    name: (
        Annotated[
            str, matching("[A-Za-z0-9][A-Za-z0-9._-]{0,79}", "1 to 80 characters of A-Z, a-z, 0-9, '.', '_' and '-'")
        ]
        | None
    ) = None
    segments: bool = True


class BackupReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A backup. One that cannot be read has only a name and an error."""

    name: str
    created_at: int | None = None
    last_seq: int | None = None  # the last journal record that it holds
    size: int | None = None  # bytes
    segments_upto: int | None = None  # exported segments up to this record are in it; 0: none
    version: str | None = None  # of the server that created it
    error: str = ""


class BackupsReply(WireReply, frozen=True, kw_only=True):
    """The backups in the server's backup directory."""

    backups: list[BackupReply]


class BackupTestReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """The result of a restore test."""

    name: str
    ok: bool
    text: str
    at: int
