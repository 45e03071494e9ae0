"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

DATA_DIR: Final = Path("tenantq-data")


def shards_by_region(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    """Return shards to add by region, as ``REGION=N`` gives them."""
    found: dict[str, int] = {}
    for text in given:
        region, _equals, number = text.partition("=")
        if not region or not number.isdecimal() or int(number) < 1:
            raise click.BadParameter(f"{text!r} is not REGION=SHARDS, such as us-east=4")
        found[region] = found.get(region, 0) + int(number)
    return found


data_dir = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=DATA_DIR,
    show_default="./tenantq-data",
    envvar="TENANTQ_DATA_DIR",
    show_envvar=True,
    metavar="DIR",
    help="The data directory.",
)
