"""Options that the pipeline's commands share, and the session they run in."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import click

from tenantq.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

journal = click.option(
    "--journal", required=True, metavar="DIR", help="Where the journal's segments are; a directory or URL."
)


def directory(text: str) -> Path:
    """Return the directory that a path or a file:// URL names. A plain function is a type to click."""
    scheme, found, rest = text.partition("://")
    if not found:
        return Path(text)
    if scheme != "file":
        raise click.BadParameter(
            f"{scheme}:// is not supported, since a commit relies on renames; give a directory, a mounted one, or a file:// URL"
        )
    return Path(unquote(rest.removeprefix("localhost")))


def storage(text: str) -> str:
    """Return a place for files that means the same from any directory."""
    return text if "://" in text else str(Path(text).absolute())


lake = click.option("--lake", "lake_path", required=True, type=directory, metavar="DIR", help="Where the tables are.")
master = click.option("--master", metavar="URL", help="Spark's master. Default: all cores of this machine, local[*].")


def _size(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if re.fullmatch(r"[1-9][0-9]*[kmgt]b?", value.lower()) is None:
        raise click.BadParameter(f"{value} is no size; say for example 2g or 1500m")
    return value


memory = click.option(
    "--driver-memory", "memory", default="2g", show_default=True, callback=_size, metavar="SIZE", help="Java's memory: all of it with local[*], else the driver's."
)  # fmt: skip
first_day = click.option(
    "--from", "from_date", type=click.DateTime(["%Y-%m-%d"]), help="Only segments from this day on."
)
last_day = click.option("--to", "to_date", type=click.DateTime(["%Y-%m-%d"]), help="Only segments up to this day.")
prices = click.option(
    "--prices", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="The price book, TOML."
)
public_key = click.option(
    "--public-key", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Check signatures with this key: <data-dir>/audit_key.pub."
)  # fmt: skip
target = click.option(
    "--slo-target", type=click.FloatRange(0, 1), default=0.999, show_default=True, help="Share of messages that must arrive in time."
)  # fmt: skip
wait = click.option(
    "--slo-wait-ms", type=click.IntRange(0), default=60_000, show_default=True, metavar="MS", help="What in time means."
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@contextmanager
def extras() -> Iterator[None]:
    """Import what only the pipeline needs in here: Unavailable says what to install."""
    try:
        yield
    except ImportError as error:
        raise Unavailable(f"the pipeline needs {error.name or 'more'}: install tenantq[spark]") from error


def check_out(out: Path) -> None:
    """Raise Invalid where no file can be put into ``out``, before Spark starts. It is made with the first file, not here."""
    try:
        there = next(path for path in (out, *out.absolute().parents) if path.exists())
    except OSError as error:
        raise Invalid(f"--out {out}: cannot be looked at: {error.strerror}; choose another directory") from error
    if not there.is_dir():
        raise Invalid(f"--out {out}: cannot be made: {there} is not a directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise Invalid(f"--out {out}: cannot be written; choose another directory, or check the permissions of {there}")


def day(given: datetime | None) -> str:
    """Return a day as partitions name it; empty where none was given."""
    return f"{given:%Y-%m-%d}" if given else ""
