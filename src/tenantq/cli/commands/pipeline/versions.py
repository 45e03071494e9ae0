"""``tenantq pipeline versions``: list and pin table versions that belong together."""

import click

from tenantq.cli.commands.pipeline import options
from tenantq.cli.output import Output, Table, output_command
from tenantq.domain.formatting import show_time


@output_command()
@options.lake_option
@click.option("--pin", type=int, metavar="SET", help="Keep the files of this version set.")
@click.option("--reason", metavar="TEXT", help="With --pin: why the set is kept.")
@click.option("--unpin", type=int, metavar="SET", help="Stop keeping this version set.")
def versions(lake_path: str, *, pin: int | None, reason: str | None, unpin: int | None) -> Output:
    """List the version sets that can be read: per set, the Delta version of each table that a run left.

    Read a table at its version to see all tables as of the same run. Requires neither Spark nor Java.
    """
    if (pin is None) != (not reason):
        raise click.UsageError("--pin requires --reason.")
    if pin is not None and unpin is not None:
        raise click.UsageError("Give either --pin or --unpin.")
    lake = options.open_lake(lake_path)
    lake.settle()
    for number, why in ((pin, reason or ""), (unpin, "")):
        if number is not None:
            with lake.locked():
                lake.tables.pin(number, why)
    sets = lake.tables.sets
    tables = sorted({name for one in sets for name in one.tables})
    return Output(
        [{"set": one.number, "at": show_time(one.at_ms), "pin": one.pin, "tables": one.tables} for one in sets],
        Table(
            ["table", *[f"set {one.number}" for one in sets]],
            [
                ["recorded", *[show_time(one.at_ms) for one in sets]],
                ["pinned", *[one.pin or "-" for one in sets]],
                *[[name, *[one.tables.get(name, "-") for one in sets]] for name in tables],
            ],
            "no version sets",
        ),
    )
