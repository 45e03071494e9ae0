"""Options that pipeline commands share."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from tenantq.cli.options import FILE, options
from tenantq.errors import Invalid, Unavailable
from tenantq.journal.export_target import local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def directory(text: str) -> Path:
    """Return the directory that a path or a file:// URL names. click accepts functions as types."""
    path = local_path(text)
    if path is None:
        raise click.BadParameter(
            f"{text.partition('://')[0]}:// is not supported, since a commit relies on renames; give a directory, a mounted one, or a file:// URL"
        )
    return path


def _size(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if re.fullmatch(r"[1-9][0-9]*[kmgt]b?", value.lower()) is None:
        raise click.BadParameter(f"{value} is no size; say for example 2g or 1500m")
    return value


on_lake: Final = options(
    click.option("--lake", "lake_path", required=True, type=directory, metavar="DIR", help="Where the tables are."),
    click.option("--master", metavar="URL", help="Spark's master. Default: all cores of this machine, local[*]."),
)
"""Add the options of every command that works on a lake with Spark."""

run_settings: Final = options(
    click.option("--journal", required=True, metavar="DIR", help="Where the journal's segments are; a directory or URL."),
    on_lake,
    click.option("--prices", type=FILE, metavar="FILE", help="The price book, TOML."),
    click.option("--public-key", type=FILE, metavar="FILE", help="Check signatures with this key: <data-dir>/audit_key.pub."),
    click.option("--slo-target", type=click.FloatRange(0, 1), default=0.999, show_default=True, help="Share of messages that must arrive in time."),
    click.option("--slo-wait-ms", type=click.IntRange(0), default=60_000, show_default=True, metavar="MS", help="What in time means."),
    click.option("--driver-memory", "memory", default="2g", show_default=True, callback=_size, metavar="SIZE", help="Java's memory: all of it with local[*], else the driver's."),
)  # fmt: skip
"""Add the options that ``run`` and ``stream`` have in common."""


def day(flag: str, help: str) -> Callable[[Any], Any]:
    """Return an option for a day, as partitions name it; empty if not given."""
    return click.option(
        flag, f"{flag.removeprefix('--')}_date", type=click.DateTime(["%Y-%m-%d"]), help=help,
        callback=lambda _context, _option, given: f"{given:%Y-%m-%d}" if given else "",
    )  # fmt: skip


@contextmanager
def extras() -> Iterator[None]:
    """Turn a missing library that only the pipeline needs into Unavailable, with what to install."""
    try:
        yield
    except ImportError as error:
        raise Unavailable(f"the pipeline needs {error.name or 'more'}: install tenantq[spark]") from error


def check_out(out: Path) -> None:
    """Raise Invalid if no file can be created in ``out``, before Spark starts. The first file creates the directory."""
    try:
        existing = next(path for path in (out, *out.absolute().parents) if path.exists())
    except OSError as error:
        raise Invalid(f"--out {out}: cannot be looked at: {error.strerror}; choose another directory") from error
    if not existing.is_dir():
        raise Invalid(f"--out {out}: cannot be made: {existing} is not a directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise Invalid(
            f"--out {out}: cannot be written; choose another directory, or check the permissions of {existing}"
        )
