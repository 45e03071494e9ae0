"""The keyring of a server that was not told where its keys are: in the data directory, beside what unlocks it.

That is as safe as the directory: whoever copies all of it has the keys too. A backup of the store alone has not.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from tenantq.errors import Invalid
from tenantq.kms.keyring import KEY_BYTES, KeyringFile, Unlock
from tenantq.kms.settings import LocalSettings
from tenantq.kms.strict_file import write_secret_file

if TYPE_CHECKING:
    from pathlib import Path

KEYRING: Final = "keyring.json"
MASTER_KEY: Final = "keyring.key"


def default_keyring(data_dir: Path, *, in_use: bool) -> LocalSettings:
    """Return where the keyring of a data directory is, made if it is not there.

    ``in_use``: the store has keys that it wrapped. Then a keyring that is gone is not replaced: Invalid says what to do.
    """
    keyring, master_key = data_dir / KEYRING, data_dir / MASTER_KEY
    if not keyring.exists():
        if in_use:
            raise Invalid(
                f"{keyring}: the keyring is gone, and encrypted messages need its keys. Restore its backup. If it is lost for good,"
                " so are they: tenantq keyring create makes a new one"
            )
        make_keyring(keyring, master_key)
    return LocalSettings(keyring=str(keyring), master_key_file=str(master_key))


def make_keyring(keyring: Path, master_key: Path) -> None:
    """Make an empty keyring, and a random master key unless there is one; Invalid, Conflict."""
    try:
        secret = master_key.read_bytes() if master_key.exists() else os.urandom(KEY_BYTES)
        if not master_key.exists():
            write_secret_file(master_key, secret, new=True)
    except OSError as error:
        raise Invalid(f"{master_key}: {error.strerror}") from None
    KeyringFile(keyring, Unlock("master_key", secret)).create()
