"""URLs to which secrets may be sent, or from which keys may be fetched."""

import ipaddress
import urllib.parse

from tenantq.errors import Invalid


def check_secure_url(field: str, url: str, *, origin_only: bool = False) -> str:
    """Return ``url`` if it is https, or http on loopback, without a user. Raises Invalid otherwise.

    ``origin_only`` allows only a scheme, a host and a port.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise Invalid(f"{field}: this is not a URL") from None
    if parts.username is not None or parts.password is not None:
        raise Invalid(f"{field}: no user or password can be in it")
    if not host or not url.isprintable() or " " in url or "\\" in url:
        raise Invalid(f"{field}: this is not a URL with a host")
    if origin_only and (parts.path not in {"", "/"} or parts.query or parts.fragment):
        raise Invalid(f"{field}: only a scheme, a host and a port can be in it")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(host)):
        raise Invalid(f"{field}: only https is allowed, or http on this machine itself")
    return url


def is_loopback(host: str) -> bool:
    """Return whether an address never leaves this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
