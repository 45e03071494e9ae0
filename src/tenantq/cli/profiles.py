"""Profiles: servers and credentials by name, in a file that only the user can read."""

import os
import tempfile
from pathlib import Path
from typing import Final

import click
import msgspec

from tenantq.client import Tls
from tenantq.errors import Invalid, NotFound

_FILE: Final = "profiles.json"


class Profile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A server and a credential, stored by name or chosen for one command."""

    url: str
    token: str | None = None
    tenant: str | None = None  # default tenant of commands; None: the credential's own
    ca_file: str | None = None  # PEM; trusted authorities
    cert_file: str | None = None  # PEM; the client certificate
    key_file: str | None = None  # PEM; its key

    @property
    def tls(self) -> Tls:
        """The files as TLS settings."""
        return Tls(ca_file=self.ca_file, certificate_file=self.cert_file, key_file=self.key_file)

    def __repr__(self) -> str:
        """Show the address, never the token."""
        return f"<profile of {self.url}>"


class Profiles(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All profiles, and the name of the default one."""

    current: str | None = None
    profiles: dict[str, Profile] = {}

    def get(self, name: str) -> Profile:
        """Return a profile, or raise NotFound."""
        found = self.profiles.get(name)
        if found is None:
            known = ", ".join(self.profiles) or "none; create one with 'tenantq profile add'"
            raise NotFound(f"unknown profile {name[:80]!r}; known profiles: {known}")
        return found


def profiles_file() -> Path:
    """Return the path of the profiles file."""
    return Path(click.get_app_dir("tenantq")) / _FILE


def load_profiles() -> Profiles:
    """Return the stored profiles. Raises Invalid if the file cannot be read."""
    file = profiles_file()
    try:
        return msgspec.json.decode(file.read_bytes(), type=Profiles)
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise Invalid(f"profiles: {file}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"profiles: {file} is damaged; repair or delete it") from error  # its content may include tokens


def save_profiles(profiles: Profiles) -> None:
    """Replace the file atomically. Only the user can read it and its directory."""
    file = profiles_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, new = tempfile.mkstemp(dir=file.parent, prefix=f".{_FILE}.")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(msgspec.json.format(msgspec.json.encode(profiles)) + b"\n")
        Path(new).replace(file)
    except BaseException:
        Path(new).unlink(missing_ok=True)
        raise
