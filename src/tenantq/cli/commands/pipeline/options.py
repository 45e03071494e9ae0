"""Options that pipeline commands share."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from tenantq.cli.options import DIRECTORY, FILE, Count, options
from tenantq.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tenantq.pipeline.lake.lake import Lake


def _size(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if re.fullmatch(r"[1-9][0-9]*[kmgt]b?", value.lower()) is None:
        raise click.BadParameter(f"{value!r} is not a size such as 2g or 1500m")
    return value


lake_option: Final = click.option("--lake", "lake_path", required=True, metavar="DIR", help="Directory or URL of the tables.")  # fmt: skip
reports_option: Final = click.option("--out", required=True, type=DIRECTORY, metavar="DIR", help="Output directory.")
on_lake: Final = options(
    lake_option,
    click.option("--master", metavar="URL", help="Spark master.  [default: local[*], all cores of this machine]"),
)
"""Add the options of every command that works on a lake with Spark."""

run_settings: Final = options(
    click.option("--journal", required=True, metavar="DIR", help="Directory or URL of the journal segments. A server writes them to <data-dir>/journal."),
    on_lake,
    click.option("--prices", type=FILE, help="TOML file with the price book."),
    click.option("--public-key", type=FILE, help="Public key that verifies signatures: <data-dir>/audit_key.pub."),
    click.option("--slo-target", type=click.FloatRange(0, 1), metavar="SHARE", default=0.999, help="Target share of messages delivered in time."),
    click.option("--slo-wait-ms", type=click.IntRange(0), default=60_000, metavar="MS", help="Maximum wait that counts as in time."),
    click.option("--keep-versions", type=Count(1), default=1, help="Version sets to keep readable, with the new one. Pinned sets are always kept."),
    click.option("--driver-memory", "memory", default="2g", callback=_size, metavar="SIZE", help="Memory of the Spark driver; with local[*], of all of Spark."),
)  # fmt: skip
"""Add the options that ``run`` and ``stream`` have in common."""


def day(flag: str, help: str) -> Callable[[Any], Any]:
    """Return an option for a day, as partitions name it; empty if not given."""
    return click.option(
        flag, f"{flag.removeprefix('--')}_date", type=click.DateTime(["%Y-%m-%d"]), metavar="YYYY-MM-DD", help=help,
        callback=lambda _context, _option, given: f"{given:%Y-%m-%d}" if given else "",
    )  # fmt: skip


@contextmanager
def extras() -> Iterator[None]:
    """Turn a missing library that only the pipeline needs into Unavailable, with what to install."""
    try:
        yield
    except ImportError as error:
        raise Unavailable(
            f"the pipeline requires {error.name or 'more libraries'}: "
            "run 'make pipeline' in the checkout, or pip install '.[spark]'"
        ) from error


def open_lake(path: str) -> Lake:
    """Return the lake at a path or URL. Raises Unavailable if a library is missing."""
    with extras():
        from tenantq.pipeline.lake.lake import Lake  # noqa: PLC0415  # --help must not need the libraries
    return Lake(path)


def check_out(out: Path) -> None:
    """Raise Invalid if no file can be created in ``out``, before Spark starts. The first file creates the directory."""
    try:
        existing = next(path for path in (out, *out.absolute().parents) if path.exists())
    except OSError as error:
        raise Invalid(f"--out {out}: cannot be accessed: {error.strerror}. Choose another directory") from error
    if not existing.is_dir():
        raise Invalid(f"--out {out}: cannot be created: {existing} is not a directory")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise Invalid(
            f"--out {out}: cannot be written. Check the permissions of {existing}, or choose another directory"
        )
