"""``tenantq pipeline reconcile``: compare the lake with the queues' counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from tenantq.cli.commands.pipeline import options
from tenantq.cli.commands.pipeline.spark_runtime import spark_command
from tenantq.cli.offline_store import free_shards, whole_store_options
from tenantq.cli.options import DIRECTORY
from tenantq.cli.output import Output, output_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tenantq.pipeline.reconciliation import Reconciliation, RemoteShard


data_dir_option: Final = click.option("--data-dir", "data_dirs", multiple=True, required=True, type=DIRECTORY, metavar="DIR", help="Data directory of a stopped server, with all its shards; repeat for each server.")  # fmt: skip


@output_command()
@data_dir_option
@whole_store_options
@options.on_lake
def reconcile(
    data_dirs: tuple[Path, ...], store: str | None, store_name: str, lake_path: str, *, master: str | None
) -> Output:
    """Compare the totals per tenant and queue in the lake with the store's counters.

    \b
    Exit codes:
      0  no drift
      1  the printed totals differ
    """
    with spark_command(master) as work:
        from tenantq.pipeline.reconciliation import reconcile as compare  # noqa: PLC0415  # needs Spark

        work.progress.begin("counting")
        remote = remote_shards(store, store_name, data_dirs)
        return reconciliation_output(compare(work.spark, options.open_lake(lake_path), data_dirs, remote))


def remote_shards(store: str | None, store_name: str, data_dirs: tuple[Path, ...]) -> Sequence[RemoteShard]:
    """Return the shards of the remote store, if one is given."""
    return free_shards(store, store_name, data_dirs[0]) if store is not None else ()


def reconciliation_output(found: Reconciliation) -> Output:
    """Return the output of a comparison."""
    behind = f"the lake ends at record {found.lake_seq}, the store at {found.store_seq}: export the journal and run the pipeline first"
    return Output(
        found,
        *[
            f"{one.tenant}/{one.queue} {one.figure}: store {one.store}, lake {one.lake}, drift {one.lake - one.store}"
            for one in found.drifts
        ],
        f"{found.queues} queues, {found.figures} figures, drift {len(found.drifts) or 'zero'}",
        notes=[behind] if found.lake_seq < found.store_seq else [],
        code=1 if found.drifts else 0,
    )
