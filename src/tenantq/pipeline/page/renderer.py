"""Renders templates: escapes every value and makes hidden characters visible. Writes pages atomically."""

import functools
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from tenantq.errors import Invalid
from tenantq.pipeline.page import number_format

_HIDDEN: Final = dict.fromkeys(
    (
        *(code for code in range(32) if code not in (9, 10)), *range(127, 160), *range(0x200B, 0x2010),
        *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF, *range(0xD800, 0xE000),
    ),
    "\N{REPLACEMENT CHARACTER}",
)  # fmt: skip
"""Control characters, direction marks, zero-width characters and surrogates."""


def render(template: str, **values: Any) -> bytes:
    """Return a rendered template. Undefined names are an error."""
    text = _environment().get_template(template).render(**values)
    return text.encode()


def visible(text: str) -> str:
    """Return text without hidden characters and direction marks."""
    return text.translate(_HIDDEN)


def write_page(file: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file atomically; raise Invalid if that fails."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, fresh = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".new")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.writelines([data] if isinstance(data, bytes) else data)
            Path(fresh).chmod(0o644)
            Path(fresh).rename(file)
        except BaseException:
            Path(fresh).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Invalid(f"{file}: cannot be written: {error.strerror}") from error


@functools.cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("tenantq.pipeline.page"),
        autoescape=select_autoescape(disabled_extensions=("md",), default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    for name in (
        "count",
        "brief",
        "short",
        "size",
        "duration",
        "percent",
        "exact",
        "quantity",
        "byte_hours",
        "per",
        "trend",
        "change",
    ):
        found.filters[name] = getattr(number_format, name)
    return found
