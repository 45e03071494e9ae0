"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

DATA_DIR: Final = Path("tenantq-data")

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
