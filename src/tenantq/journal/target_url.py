"""Paths and URLs of export targets."""

from pathlib import Path
from urllib.parse import unquote


def shown_url(url: str) -> str:
    """Return a URL without user, password and options."""
    scheme, mark, rest = url.partition("://")
    place, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}{mark}{place.rpartition('@')[2]}{slash}{path}"


def local_path(where: str) -> Path | None:
    """Return the path that a path or a file:// URL names, or None for any other URL."""
    scheme, found, rest = where.partition("://")
    if not found:
        return Path(where)
    return Path(unquote(rest.removeprefix("localhost"))) if scheme == "file" else None
