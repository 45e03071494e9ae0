"""Hosts and ports in the URLs of remote stores."""

from tenantq.errors import Invalid


def parse_host(text: str, default_port: int, url_form: str) -> tuple[str, int]:
    """Return the parts of HOST, HOST:PORT or [IPv6]:PORT. Raises Invalid."""
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host:
        raise Invalid(f"store: a host is missing. Use {url_form}")
    return host, parse_port(port, url_form)


def parse_port(text: str, url_form: str) -> int:
    """Return a port. Raises Invalid."""
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16):
        raise Invalid(f"store: a port must be a number from 1 to 65535. Use {url_form}")
    return int(text)
