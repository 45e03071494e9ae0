"""A whole server for tests: real service, real store, real socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenantq.journal.export_settings import ExportSettings
from tenantq.server import Server
from tenantq.settings import ServerSettings

if TYPE_CHECKING:
    from pathlib import Path

ADMIN = "administrator-of-the-tests"


def real_server(data_dir: Path, **given: Any) -> Server:
    """Return a server that is not started yet; ``ADMIN`` is its administrator token."""
    settings = ServerSettings(data_dir=str(data_dir), http="127.0.0.1:0", export=ExportSettings(enabled=False), **given)
    return Server(settings, admin_token=ADMIN)
