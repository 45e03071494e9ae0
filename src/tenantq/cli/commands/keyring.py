"""``tenantq keyring``: the keyring file of the local key management. No server is asked; a running one notices by itself."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tenantq.cli.command_group import CommandGroup
from tenantq.cli.confirmation import confirm
from tenantq.cli.output import json_option, print_done, print_json, print_table
from tenantq.domain.formatting import show_time
from tenantq.errors import Invalid
from tenantq.kms.default_keyring import KEYRING, MASTER_KEY, make_keyring
from tenantq.kms.keyring import KeyringFile
from tenantq.kms.local import unlock_of
from tenantq.kms.settings import LocalSettings

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")

_OPTIONS = (
    click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default="./tenantq-data",
        show_default=True,
        metavar="DIR",
        envvar="TENANTQ_DATA_DIR",
        show_envvar=True,
        help="The server's data directory, where the keyring is unless another is named.",
    ),
    click.option("--keyring", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Another keyring."),
    click.option("--master-key-file", metavar="FILE", help="What unlocks it: a file with 32 random bytes."),
    click.option("--passphrase-file", metavar="FILE", help="What unlocks it: a file with a passphrase."),
)


def on_keyring(function: Callable[..., R]) -> Callable[..., R]:
    """Give a command the options that lead to a keyring, and hand the file in as its first argument."""

    @functools.wraps(function)
    def command(
        *, data_dir: Path, keyring: Path | None, master_key_file: str | None, passphrase_file: str | None, **rest: Any
    ) -> R:
        path = keyring or data_dir / KEYRING
        if master_key_file is None and passphrase_file is None:
            master_key_file = str(path.with_name(MASTER_KEY))
        return function(_settings(path, master_key_file, passphrase_file), **rest)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _settings(path: Path, master_key_file: str | None, passphrase_file: str | None) -> LocalSettings:
    return LocalSettings(keyring=str(path), master_key_file=master_key_file, passphrase_file=passphrase_file)


def _open(settings: LocalSettings) -> KeyringFile:
    return KeyringFile(Path(settings.keyring), unlock_of(settings, os.environ))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@click.group(cls=CommandGroup)
def keyring() -> None:
    """Make and change the keyring of the local key management.

    Back it up, apart from the data: without it nothing that was encrypted with its keys can be read again.
    """


@keyring.command()
@json_option
@on_keyring
def create(settings: LocalSettings, *, as_json: bool) -> None:
    """Make an empty keyring, and a random master key for it unless there is one, or a passphrase is given."""
    path = Path(settings.keyring)
    if not path.parent.is_dir():
        raise Invalid(f"{path.parent}: there is no such directory")
    if settings.passphrase_file is not None:
        _open(settings).create()
    else:
        make_keyring(path, Path(settings.master_key_file or ""))
    print_done(f"made {path}; back it up, apart from the data", {"keyring": str(path)}, as_json=as_json)


@keyring.command("list")
@json_option
@on_keyring
def list_keys(settings: LocalSettings, *, as_json: bool) -> None:
    """List the keys of a keyring, by name."""
    keys = sorted(_open(settings).read().document.keys.items())
    if as_json:
        print_json(
            {
                "keys": [
                    {
                        "name": name,
                        "enabled": key.enabled,
                        "version": key.current,
                        "rotated_at": key.versions[key.current].created_at,
                    }
                    for name, key in keys
                ]
            }
        )
        return
    rows = [
        (name, key.current, show_time(key.versions[key.current].created_at), "enabled" if key.enabled else "disabled")
        for name, key in keys
    ]
    print_table(("key", "version", "made", "state"), rows, empty="no keys")


@keyring.command()
@click.argument("name")
@json_option
@on_keyring
def add(settings: LocalSettings, *, name: str, as_json: bool) -> None:
    """Add a key, which tenants can name as local:NAME."""
    _open(settings).add_key(name, _now_ms())
    print_done(f"added local:{name}", {"name": name, "version": 1}, as_json=as_json)


@keyring.command()
@click.argument("name")
@json_option
@on_keyring
def rotate(settings: LocalSettings, *, name: str, as_json: bool) -> None:
    """Give a key a new version, which wraps from now on. Older ones unwrap as before; rewrap to be rid of them."""
    version = _open(settings).rotate_key(name, _now_ms())
    print_done(
        f"version {version} of local:{name} wraps from now on; to use it for all data keys: tenantq encryption rewrap",
        {"name": name, "version": version},
        as_json=as_json,
    )


@keyring.command()
@click.argument("name")
@json_option
@on_keyring
def disable(settings: LocalSettings, *, name: str, as_json: bool) -> None:
    """Let a key be used no more; what is in a server's memory works on until it is too old."""
    _open(settings).set_enabled(name, enabled=False)
    print_done(f"disabled local:{name}", {"name": name, "enabled": False}, as_json=as_json)


@keyring.command()
@click.argument("name")
@json_option
@on_keyring
def enable(settings: LocalSettings, *, name: str, as_json: bool) -> None:
    """Let a key be used again."""
    _open(settings).set_enabled(name, enabled=True)
    print_done(f"enabled local:{name}", {"name": name, "enabled": True}, as_json=as_json)


@keyring.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@on_keyring
def remove(settings: LocalSettings, *, name: str, yes: bool, as_json: bool) -> None:
    """Destroy a key: what only it has wrapped cannot be read again, save with a copy of the keyring."""
    ring = _open(settings)
    ring.read().known(name)
    if not yes:
        confirm(f"This destroys local:{name}; what only it has wrapped cannot be read again", name)
    ring.remove_key(name)
    print_done(f"destroyed local:{name}", {"name": name, "removed": True}, as_json=as_json)


@keyring.command()
@click.option("--new-master-key-file", metavar="FILE", help="What is to unlock it: a file with 32 random bytes.")
@click.option("--new-passphrase-file", metavar="FILE", help="What is to unlock it: a file with a passphrase.")
@json_option
@on_keyring
def protect(
    settings: LocalSettings, *, new_master_key_file: str | None, new_passphrase_file: str | None, as_json: bool
) -> None:
    """Change what unlocks a keyring. Its keys stay the same. Stop the server first, and change its settings."""
    if (new_master_key_file is None) == (new_passphrase_file is None):
        raise Invalid("give exactly one of --new-master-key-file and --new-passphrase-file")
    wanted = _settings(Path(settings.keyring), new_master_key_file, new_passphrase_file)
    _open(settings).protect_with(unlock_of(wanted, os.environ))
    unlocks = new_master_key_file or new_passphrase_file
    print_done(
        f"{settings.keyring} is unlocked by {unlocks} from now on",
        {"keyring": settings.keyring, "unlocked_by": unlocks},
        as_json=as_json,
    )
