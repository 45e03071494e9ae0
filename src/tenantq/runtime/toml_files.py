"""Typed TOML files."""

import tomllib
from pathlib import Path
from typing import TypeVar

import msgspec

from tenantq.errors import Invalid

_T = TypeVar("_T")


def read_toml(file: Path, type: type[_T], what: str) -> _T:
    """Return the content of a file as ``type``. Raises Invalid, whose text starts with ``what`` and the path."""
    try:
        return msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), type)
    except OSError as error:
        raise Invalid(f"{what} {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise Invalid(f"{what} {file}: {error}") from error
