"""Client certificates: maps the names in them (SAN) to principals.

The listener has verified the chain and the dates. The common name is ignored: only subject alternative names count, each
written with its kind: ``DNS:worker.acme.example``, ``DNS:*.acme.example``, ``URI:spiffe://acme/worker``, ``IP:10.0.0.7``.
"""

import ipaddress
import re
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from tenantq.domain.access import Grant, Principal
from tenantq.domain.names import check_tenant_name
from tenantq.domain.validation import build
from tenantq.errors import Forbidden, Invalid, Unauthenticated

NAMES_MAX: Final = 100_000
_NAME_CHARS_MAX: Final = 512
_SANS_MAX: Final = 256
_DNS: Final = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")


class CertificateGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tenant and grants of a certificate with a mapped name."""

    tenant: str
    role: str
    queues: tuple[str, ...] = ("*",)


class CertificateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Maps names in certificates to principals. An exact name takes precedence over a wildcard."""

    names: dict[str, CertificateGrant] = {}


class CertificateMap:
    """Finds the principal of a verified certificate."""

    def __init__(self, settings: CertificateSettings) -> None:
        """Check every entry. Raises Invalid that names the first invalid one."""
        if len(settings.names) > NAMES_MAX:
            raise Invalid(f"certificates: too many names ({len(settings.names)}, allowed: {NAMES_MAX})")
        self._names: dict[str, tuple[str, Grant]] = {}
        for name, entry in settings.names.items():
            normal = _checked(name)
            if normal in self._names:
                raise Invalid(f"certificates: {name[:80]!r} is listed twice")
            if entry.role == "platform-admin":
                raise Invalid("certificates: a certificate cannot have the role platform-admin. Use a token.")
            try:
                grant = build(Grant, {"role": entry.role, "queues": entry.queues})
                self._names[normal] = (check_tenant_name(entry.tenant), grant)
            except Invalid as error:
                raise Invalid(f"certificates: {name[:80]!r}: {error.message}") from error

    def principal(self, certificate: Mapping[str, Any]) -> Principal:
        """Return the principal like ``find``. Raises Unauthenticated if none of its names is mapped."""
        found = self.find(certificate)
        if found is None:
            raise Unauthenticated
        return found

    def find(self, certificate: Mapping[str, Any]) -> Principal | None:
        """Return the principal of a certificate in the form of ``ssl.SSLObject.getpeercert()``, or None if no name is mapped.

        The grants of all mapped names are combined; the alphabetically first name becomes the principal. Raises Forbidden if
        the names are mapped to several tenants.
        """
        found: dict[str, tuple[str, Grant]] = {}
        for name in _sans(certificate):
            entry = self._names.get(name) or self._names.get(_wildcard(name))
            if entry is not None:
                found[name] = entry
        if not found:
            return None
        tenants = {tenant for tenant, _ in found.values()}
        if len(tenants) > 1:
            raise Forbidden("The certificate names several tenants. Use one certificate per tenant.")
        grants = dict.fromkeys(grant for _, (_, grant) in sorted(found.items()))
        return Principal(f"cert:{min(found)}", tenants.pop(), tuple(grants), _expires_at(certificate))


def _checked(name: str) -> str:
    """Return the normal form of a name in the map. Raises Invalid."""
    kind, _, value = name.partition(":")
    wild = (
        kind == "DNS" and value.startswith("*.") and value.count(".") > 1
    )  # not *.example, which would match any domain
    normal = _normal(kind, value[2:] if wild else value) if len(value) <= _NAME_CHARS_MAX else None
    if normal is None:
        raise Invalid(
            f"certificates: {name[:80]!r} is not a name such as 'DNS:worker.acme.example', 'DNS:*.acme.example', "
            "'URI:spiffe://acme/worker' or 'IP:10.0.0.7'"
        )
    return f"DNS:*.{normal[4:]}" if wild else normal


def _sans(certificate: Mapping[str, Any]) -> Iterator[str]:
    for kind, value in certificate.get("subjectAltName", ())[:_SANS_MAX]:
        normal = _normal("IP" if kind == "IP Address" else kind, value)
        if normal is not None:
            yield normal


def _normal(kind: str, value: str) -> str | None:
    """Return the normal form of a name in a certificate, or None if such names are ignored, as wildcards are."""
    if kind == "DNS":
        value = value.lower().removesuffix(".")
        return f"DNS:{value}" if _DNS.fullmatch(value) else None
    if kind == "URI":
        return f"URI:{value}" if value.isprintable() and 1 <= len(value) <= _NAME_CHARS_MAX else None
    if kind == "IP":
        try:
            return f"IP:{ipaddress.ip_address(value.strip())}"
        except ValueError:
            return None
    return None


def _wildcard(name: str) -> str:
    """Return the wildcard that covers a DNS name. The star covers exactly one label."""
    _, dot, parent = name.partition(".")
    return f"DNS:*.{parent}" if dot and name.startswith("DNS:") else ""


def _expires_at(certificate: Mapping[str, Any]) -> int | None:
    end = certificate.get("notAfter")
    if end is None:
        return None
    try:
        return ssl.cert_time_to_seconds(end) * 1_000
    except (ValueError, TypeError) as error:
        raise Unauthenticated from error
