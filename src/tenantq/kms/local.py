"""The provider ``local``: keys in a keyring file. The file is read again when it changes."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tenantq.errors import Invalid, KmsUnavailable, TenantqError
from tenantq.kms.blocking_provider import BlockingProvider
from tenantq.kms.interface import Context, context_bytes
from tenantq.kms.keyring import KEY_BYTES, Keyring, Protection, Unlock, check_key_name, parse_keyring
from tenantq.kms.secret_file import read_secret_file, stamp_of
from tenantq.kms.settings import LocalSettings

log = logging.getLogger("tenantq")

NAME: Final = "local"


def unlock_of(settings: LocalSettings, environment: Mapping[str, str]) -> Unlock:
    """Return the secret that unlocks the keyring. Raises Invalid naming the setting."""
    given = [field for field in ("passphrase_file", "passphrase_env", "master_key_file") if getattr(settings, field)]
    if len(given) != 1:
        raise Invalid("kms.local: set exactly one of passphrase_file, passphrase_env and master_key_file")
    (field,) = given
    source = str(getattr(settings, field))
    if field == "passphrase_env" and source not in environment:
        raise Invalid(f"kms.local.{field}: the environment variable {source} is not set")
    try:
        if field == "passphrase_env":
            return Unlock("passphrase", environment[source].encode())
        content, _ = read_secret_file(Path(source))
        if field == "passphrase_file":
            return Unlock("passphrase", content.rstrip(b"\r\n"))
        return Unlock("master_key", _master_key(content))
    except OSError as error:
        raise Invalid(f"kms.local.{field}: {source}: {error.strerror}") from None
    except Invalid as error:
        raise Invalid(f"kms.local.{field}: {source}: {error.message}") from None


def _master_key(content: bytes) -> bytes:
    if len(content) == KEY_BYTES:
        return content
    try:
        return bytes.fromhex(content.decode("ascii"))
    except ValueError:  # its text may reveal the content
        return b""


class LocalKms(BlockingProvider):
    """Keys of a keyring file. A missing or damaged file is an outage; its old content is not used."""

    def __init__(
        self,
        settings: LocalSettings,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Read the keyring. Raises Invalid. With a passphrase this takes some time."""
        super().__init__(NAME, threads=1)  # one thread, because the state below is not locked
        self._path = Path(settings.keyring)
        self._unlock = unlock_of(settings, environment)
        self._root: tuple[Protection, bytes] | None = None
        self._stamp: tuple[int, ...] = ()
        self._keyring: Keyring | None = None
        try:
            self._read()
        except Invalid as error:
            raise Invalid(f"kms.local.keyring: {error.message}") from None

    def check_key(self, key: str) -> None:
        check_key_name(key)

    def _wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        return self._fresh().wrap(key, plaintext, _aad(key, context), os.urandom)

    def _unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        return self._fresh().unwrap(key, wrapped, _aad(key, context))

    def _typed(self, error: Exception) -> TenantqError | None:  # noqa: ARG002  # no library, so no errors to map
        return None

    def _disconnect(self) -> None:
        self._keyring = self._root = None
        self._stamp = ()

    def _fresh(self) -> Keyring:
        try:
            if self._keyring is None or stamp_of(self._path) != self._stamp:
                return self._read()
        except OSError as error:
            raise KmsUnavailable(f"local: cannot read the keyring: {error.strerror}") from None
        except Invalid as error:
            self._keyring = None
            # A tenant's callers see the error but not the server's paths.
            text = error.message.replace(f"{self._path}: ", "").replace(str(self._path), "the keyring")
            log.warning("cannot use the keyring: %s", error.message)
            raise KmsUnavailable(f"local: cannot use the keyring: {text}") from None
        return self._keyring

    def _read(self) -> Keyring:
        try:
            content, stamp = read_secret_file(self._path)
            keyring, root = parse_keyring(content, self._unlock, self._root)
        except OSError as error:
            raise Invalid(f"{self._path}: {error.strerror}") from None
        except Invalid as error:
            raise Invalid(f"{self._path}: {error.message}") from None
        self._root = (keyring.document.protection, root)
        self._stamp, self._keyring = stamp, keyring
        return keyring


def _aad(key: str, context: Context) -> bytes:
    """Return the additional authenticated data. A NUL, which no name contains, ends the name."""
    return key.encode() + b"\0" + context_bytes(context)
