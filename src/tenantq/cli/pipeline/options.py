"""Options that the pipeline's commands share, and the session they run in."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tenantq.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pyspark.sql import SparkSession

"""Exit code: everything good was processed, and something is in quarantine."""

journal = click.option("--journal", required=True, metavar="DIR", help="Where the journal's segments are.")
lake = click.option(
    "--lake", "lake_path", required=True, type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Where the tables are."
)  # fmt: skip
master = click.option("--master", metavar="URL", help="Spark's master. Default: all cores of this machine, local[*].")
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


def session(master: str | None) -> SparkSession:
    """Open Spark; Unavailable says what is missing."""
    from tenantq.pipeline.session import open_session  # noqa: PLC0415  # --help must not need Spark

    return open_session(master)


@contextmanager
def extras() -> Iterator[None]:
    """Import what only the pipeline needs in here: Unavailable says what to install."""
    try:
        yield
    except ImportError as error:
        raise Unavailable(f"the pipeline needs {error.name or 'more'}: install tenantq[spark]") from error


def day(given: datetime | None) -> str:
    """Return a day as partitions name it; empty where none was given."""
    return f"{given:%Y-%m-%d}" if given else ""
