"""``tenantq keyring``: the keyring file of the local key management. A running server notices changes by itself."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.confirmation import confirm
from tenantq.cli.options import FILE, name_argument
from tenantq.cli.options import data_dir as data_dir_option
from tenantq.cli.output import Output, Table, output_command
from tenantq.domain.formatting import show_time
from tenantq.errors import Invalid
from tenantq.kms.keyring import KeyringFile
from tenantq.kms.local import unlock_of
from tenantq.kms.server_keyring import KEYRING, MASTER_KEY, create_keyring
from tenantq.kms.settings import LocalSettings
from tenantq.runtime.clock import SystemClock

_OPTIONS: Final = (
    data_dir_option,
    click.option("--keyring", "file", type=FILE, help="Keyring file.  [default: in the data directory]"),
    click.option("--master-key-file", metavar="FILE", help="File with the 32-byte master key that unlocks the keyring."),
    click.option("--passphrase-file", metavar="FILE", help="File with the passphrase that unlocks the keyring."),
)  # fmt: skip


@click.group(cls=CommandGroup)
def keyring() -> None:
    """Manage the keyring of the local key management.

    Back it up separately from the data: without it, data encrypted with its keys is lost.
    """


def _command(*parameters: Callable[[Any], Any], **attributes: Any) -> Callable[[Callable[..., Output]], click.Command]:
    """Return a decorator for a command that gets the settings of a keyring as its first argument."""

    def declare(function: Callable[..., Output]) -> click.Command:
        @functools.wraps(function)
        def with_settings(
            *, data_dir: Path, file: Path | None, master_key_file: str | None, passphrase_file: str | None, **rest: Any
        ) -> Output:
            path = file or data_dir / KEYRING
            if master_key_file is None and passphrase_file is None:
                master_key_file = str(path.with_name(MASTER_KEY))
            return function(_settings(path, master_key_file, passphrase_file), **rest)

        return output_command(keyring, *parameters, *_OPTIONS, **attributes)(with_settings)

    return declare


def _settings(path: Path, master_key_file: str | None, passphrase_file: str | None) -> LocalSettings:
    return LocalSettings(keyring=str(path), master_key_file=master_key_file, passphrase_file=passphrase_file)


def _open(settings: LocalSettings) -> KeyringFile:
    return KeyringFile(Path(settings.keyring), unlock_of(settings, os.environ))


@_command()
def create(settings: LocalSettings) -> Output:
    """Create an empty keyring. Without a passphrase, also create a random master key if missing."""
    path = Path(settings.keyring)
    if not path.parent.is_dir():
        raise Invalid(f"{path.parent}: no such directory")
    if settings.passphrase_file is not None:
        _open(settings).create()
    else:
        create_keyring(path, Path(settings.master_key_file or ""))
    return Output({"keyring": str(path)}, f"created {path}; back it up separately from the data")


@_command(name="list")
def list_keys(settings: LocalSettings) -> Output:
    """List the keys of a keyring."""
    shown, rows = [], []
    for name, key in sorted(_open(settings).read().document.keys.items()):
        created_at = key.versions[key.current].created_at
        shown.append({"name": name, "enabled": key.enabled, "version": key.current, "rotated_at": created_at})
        rows.append((name, key.current, show_time(created_at), "enabled" if key.enabled else "disabled"))
    return Output({"keys": shown}, Table(("key", "version", "created", "state"), rows, "no keys"))


@_command(name_argument)
def add(settings: LocalSettings, *, name: str) -> Output:
    """Add a key. Tenants use it as local:NAME."""
    _open(settings).add_key(name, SystemClock().wall_ms())
    return Output({"name": name, "version": 1}, f"added local:{name}")


@_command(name_argument)
def rotate(settings: LocalSettings, *, name: str) -> Output:
    """Create a new version of a key for wrapping. Old versions still unwrap; 'tenantq encryption rewrap' retires them."""
    version = _open(settings).rotate_key(name, SystemClock().wall_ms())
    return Output(
        {"name": name, "version": version},
        f"version {version} of local:{name} now wraps data keys; rewrap existing ones with: tenantq encryption rewrap",
    )


@_command(name_argument)
def disable(settings: LocalSettings, *, name: str) -> Output:
    """Disable a key. Servers may use data keys from their cache until these expire."""
    _open(settings).set_enabled(name, enabled=False)
    return Output({"name": name, "enabled": False}, f"disabled local:{name}")


@_command(name_argument)
def enable(settings: LocalSettings, *, name: str) -> Output:
    """Enable a disabled key."""
    _open(settings).set_enabled(name, enabled=True)
    return Output({"name": name, "enabled": True}, f"enabled local:{name}")


@_command()
@name_argument
@click.option("--yes", is_flag=True, help="Skip the confirmation prompt.")
def remove(settings: LocalSettings, *, name: str, yes: bool) -> Output:
    """Destroy a key. Data wrapped only by it becomes unreadable, except with a backup of the keyring."""
    ring = _open(settings)
    ring.read().known(name)
    if not yes:
        confirm(f"This destroys local:{name}; data wrapped only by it becomes unreadable", name)
    ring.remove_key(name)
    return Output({"name": name, "removed": True}, f"destroyed local:{name}")


@_command()
@click.option("--new-master-key-file", metavar="FILE", help="File with the new 32-byte master key.")
@click.option("--new-passphrase-file", metavar="FILE", help="File with the new passphrase.")
def protect(settings: LocalSettings, *, new_master_key_file: str | None, new_passphrase_file: str | None) -> Output:
    """Change the master key or passphrase of a keyring. Stop the server first, then update its settings."""
    if (new_master_key_file is None) == (new_passphrase_file is None):
        raise Invalid("Give either --new-master-key-file or --new-passphrase-file.")
    path, unlocks = settings.keyring, new_master_key_file or new_passphrase_file
    wanted = _settings(Path(path), new_master_key_file, new_passphrase_file)
    _open(settings).protect_with(unlock_of(wanted, os.environ))
    return Output({"keyring": path, "unlocked_by": unlocks}, f"{path} is now unlocked by {unlocks}")
