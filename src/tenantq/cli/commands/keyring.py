"""``tenantq keyring``: the keyring file of the local key management. A running server notices changes by itself."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.confirmation import confirm
from tenantq.cli.options import DIRECTORY, FILE, name_argument, options
from tenantq.cli.output import Output, Table, prints_output
from tenantq.domain.formatting import show_time
from tenantq.errors import Invalid
from tenantq.kms.keyring import KeyringFile
from tenantq.kms.local import unlock_of
from tenantq.kms.server_keyring import KEYRING, MASTER_KEY, create_keyring
from tenantq.kms.settings import LocalSettings
from tenantq.runtime.clock import SystemClock

_OPTIONS: Final = (
    click.option(
        "--data-dir",
        type=DIRECTORY,
        default="./tenantq-data",
        show_default=True,
        metavar="DIR",
        envvar="TENANTQ_DATA_DIR",
        show_envvar=True,
        help="The server's data directory, where the keyring is unless another is named.",
    ),
    click.option("--keyring", type=FILE, metavar="FILE", help="Another keyring."),
    click.option("--master-key-file", metavar="FILE", help="What unlocks it: a file with 32 random bytes."),
    click.option("--passphrase-file", metavar="FILE", help="What unlocks it: a file with a passphrase."),
)


def on_keyring(command: Callable[..., Output]) -> Callable[..., int]:
    """Add the options that name a keyring to a command, and pass on its settings as the first argument."""

    @functools.wraps(command)
    def with_settings(
        *, data_dir: Path, keyring: Path | None, master_key_file: str | None, passphrase_file: str | None, **rest: Any
    ) -> Output:
        path = keyring or data_dir / KEYRING
        if master_key_file is None and passphrase_file is None:
            master_key_file = str(path.with_name(MASTER_KEY))
        return command(_settings(path, master_key_file, passphrase_file), **rest)

    return prints_output(options(*_OPTIONS)(with_settings))


def _settings(path: Path, master_key_file: str | None, passphrase_file: str | None) -> LocalSettings:
    return LocalSettings(keyring=str(path), master_key_file=master_key_file, passphrase_file=passphrase_file)


def _open(settings: LocalSettings) -> KeyringFile:
    return KeyringFile(Path(settings.keyring), unlock_of(settings, os.environ))


@click.group(cls=CommandGroup)
def keyring() -> None:
    """Make and change the keyring of the local key management.

    Back it up, apart from the data: without it nothing that was encrypted with its keys can be read again.
    """


@keyring.command()
@on_keyring
def create(settings: LocalSettings) -> Output:
    """Make an empty keyring, and a random master key for it unless there is one, or a passphrase is given."""
    path = Path(settings.keyring)
    if not path.parent.is_dir():
        raise Invalid(f"{path.parent}: there is no such directory")
    if settings.passphrase_file is not None:
        _open(settings).create()
    else:
        create_keyring(path, Path(settings.master_key_file or ""))
    return Output({"keyring": str(path)}, f"made {path}; back it up, apart from the data")


@keyring.command("list")
@on_keyring
def list_keys(settings: LocalSettings) -> Output:
    """List the keys of a keyring, by name."""
    keys = sorted(_open(settings).read().document.keys.items())
    made_at = {name: key.versions[key.current].created_at for name, key in keys}
    shown = [
        {"name": name, "enabled": key.enabled, "version": key.current, "rotated_at": made_at[name]}
        for name, key in keys
    ]
    rows = [
        (name, key.current, show_time(made_at[name]), "enabled" if key.enabled else "disabled") for name, key in keys
    ]
    return Output({"keys": shown}, Table(("key", "version", "made", "state"), rows, "no keys"))


@keyring.command()
@name_argument
@on_keyring
def add(settings: LocalSettings, *, name: str) -> Output:
    """Add a key, which tenants can name as local:NAME."""
    _open(settings).add_key(name, SystemClock().wall_ms())
    return Output({"name": name, "version": 1}, f"added local:{name}")


@keyring.command()
@name_argument
@on_keyring
def rotate(settings: LocalSettings, *, name: str) -> Output:
    """Give a key a new version, which wraps from now on. Older ones unwrap as before; rewrap to be rid of them."""
    version = _open(settings).rotate_key(name, SystemClock().wall_ms())
    return Output(
        {"name": name, "version": version},
        f"version {version} of local:{name} wraps from now on; to use it for all data keys: tenantq encryption rewrap",
    )


@keyring.command()
@name_argument
@on_keyring
def disable(settings: LocalSettings, *, name: str) -> Output:
    """Let a key be used no more; what is in a server's memory works on until it is too old."""
    _open(settings).set_enabled(name, enabled=False)
    return Output({"name": name, "enabled": False}, f"disabled local:{name}")


@keyring.command()
@name_argument
@on_keyring
def enable(settings: LocalSettings, *, name: str) -> Output:
    """Let a key be used again."""
    _open(settings).set_enabled(name, enabled=True)
    return Output({"name": name, "enabled": True}, f"enabled local:{name}")


@keyring.command()
@name_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@on_keyring
def remove(settings: LocalSettings, *, name: str, yes: bool) -> Output:
    """Destroy a key: what only it has wrapped cannot be read again, save with a copy of the keyring."""
    ring = _open(settings)
    ring.read().known(name)
    if not yes:
        confirm(f"This destroys local:{name}; what only it has wrapped cannot be read again", name)
    ring.remove_key(name)
    return Output({"name": name, "removed": True}, f"destroyed local:{name}")


@keyring.command()
@click.option("--new-master-key-file", metavar="FILE", help="What is to unlock it: a file with 32 random bytes.")
@click.option("--new-passphrase-file", metavar="FILE", help="What is to unlock it: a file with a passphrase.")
@on_keyring
def protect(settings: LocalSettings, *, new_master_key_file: str | None, new_passphrase_file: str | None) -> Output:
    """Change what unlocks a keyring. Its keys stay the same. Stop the server first, and change its settings."""
    if (new_master_key_file is None) == (new_passphrase_file is None):
        raise Invalid("give exactly one of --new-master-key-file and --new-passphrase-file")
    path, unlocks = settings.keyring, new_master_key_file or new_passphrase_file
    wanted = _settings(Path(path), new_master_key_file, new_passphrase_file)
    _open(settings).protect_with(unlock_of(wanted, os.environ))
    return Output({"keyring": path, "unlocked_by": unlocks}, f"{path} is unlocked by {unlocks} from now on")
