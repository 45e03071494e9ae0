"""Backups on the wire."""

from __future__ import annotations

from tenantq.wire.kinds import Wire, WireReply


class BackupRequest(Wire, frozen=True, kw_only=True):
    """Back the server up; ``name`` None: the time. Without ``segments`` the exported journal is left out."""

    name: str | None = None
    segments: bool = True


class BackupReply(WireReply, frozen=True, kw_only=True, omit_defaults=False):
    """A backup; one that cannot be read has only a name and an error."""

    name: str
    created_at: int | None = None
    last_seq: int | None = None  # the last journal record that it holds
    size: int | None = None  # bytes
    segments_upto: int | None = None  # exported segments up to this record are in it; 0: none
    version: str | None = None  # of the server that made it
    error: str = ""


class BackupsReply(WireReply, frozen=True, kw_only=True):
    """The backups in the server's backup directory."""

    backups: list[BackupReply]
