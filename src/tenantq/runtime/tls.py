"""TLS contexts that reload their files when these change."""

import logging
import ssl
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from tenantq.errors import Invalid

log = logging.getLogger("tenantq")

_VERIFY: Final = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Paths of PEM files."""

    certificate: str  # the server's, followed by its chain
    key: str
    client_ca: str | None = None  # CA of client certificates
    verify: Literal["none", "optional", "required"] = "none"  # client certificates


class LoadCounts(Protocol):
    """Counts how often certificates were loaded."""

    certificates_loaded_total: int
    certificates_failed_total: int


class TlsContext:
    """The TLS context of a server. ``reload_if_changed`` reloads its files; open connections stay."""

    def __init__(self, files: TlsFiles, counters: LoadCounts, *, alpn: str | None = None) -> None:
        self._files = files
        self._counters = counters
        self._alpn = alpn  # the protocol offered to clients
        self._stamps = self._look()
        self.context = _new_context(files, alpn)
        self._counters.certificates_loaded_total += 1

    def reload_if_changed(self) -> None:
        """Reload the files if one has changed. If that fails, the old certificate stays until the files change again."""
        stamps = self._look()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            check_tls(self._files)  # that certificate and key match, before the context in use changes
            _load(self.context, self._files)
        except Invalid as error:
            self._counters.certificates_failed_total += 1
            log.warning("certificate not reloaded: %s", error.message)
        else:
            self._counters.certificates_loaded_total += 1
            log.info("certificate reloaded from %s", self._files.certificate)

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        files = self._files
        return tuple(_stamp(path) for path in (files.certificate, files.key, files.client_ca) if path is not None)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def check_tls(files: TlsFiles) -> None:
    """Raise Invalid if the files cannot be used."""
    _new_context(files, None)


def _new_context(files: TlsFiles, alpn: str | None) -> ssl.SSLContext:
    if files.verify != "none" and files.client_ca is None:
        raise Invalid("client_ca: required if client certificates are verified")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if alpn is not None:
        context.set_alpn_protocols([alpn])
    context.verify_mode = _VERIFY[files.verify]
    _load(context, files)
    return context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise Invalid(f"certificate: {files.certificate} and key {files.key} cannot be used: {error}") from error
    if files.client_ca is None:
        return
    try:
        context.load_verify_locations(files.client_ca)
    except (OSError, ValueError) as error:
        raise Invalid(f"client_ca: {files.client_ca} cannot be used: {error}") from error


def _no_password() -> str:
    """Raise ValueError instead of asking for a passphrase on the terminal."""
    raise ValueError("the key is encrypted; store it without a passphrase, readable by this user only")
