"""``tenantq pipeline simulate``: what adding shards or regions would move."""

from pathlib import Path

import click

from tenantq.cli.commands.pipeline import options
from tenantq.cli.commands.pipeline.spark_runtime import spark_command
from tenantq.cli.options import DIRECTORY, FILE, Count, shards_by_region
from tenantq.cli.output import Output, output_command
from tenantq.domain.names import OptionalRegionName
from tenantq.domain.placement import load_topology
from tenantq.domain.validation import check_field


@output_command()
@options.on_lake
@click.option("--topology", "topology_file", required=True, type=FILE, help="TOML file with the current shards.")  # fmt: skip
@click.option("--add-shards", type=Count(0), default=0, show_default=False, help="Number of shards to add, spread over the regions.")  # fmt: skip
@click.option("--add-region", "add_regions", multiple=True, callback=shards_by_region, metavar="REGION=N", help="Shards to add in a region, which may be new; repeatable.")  # fmt: skip
@click.option("--out", required=True, type=DIRECTORY, metavar="DIR", help="Output directory for simulation.html, shards.csv and moves.csv.")  # fmt: skip
@options.day("--from", help="First day of usage.")
@options.day("--to", help="Last day of usage.")
def simulate(
    lake_path: str, *, topology_file: Path, add_shards: int, add_regions: dict[str, int], out: Path,
    from_date: str, to_date: str, master: str | None,
) -> Output:  # fmt: skip
    """Simulate more shards or regions with recorded usage: moves, load per shard and residency.

    \b
    Exit codes:
      2  an invalid topology, or tenants without an eligible shard
      3  the lake has no usage
    """
    before = load_topology(topology_file)  # reports errors before Spark starts
    for region in add_regions:
        check_field("--add-region", region, OptionalRegionName)
    after = before.grown(add_shards, add_regions)
    options.check_out(out)
    with options.extras():
        from tenantq.pipeline.page.renderer import write_page  # noqa: PLC0415  # needs Spark
        from tenantq.pipeline.simulation.forecast_page import simulation_page  # noqa: PLC0415
        from tenantq.pipeline.simulation.load_forecast import Placement, forecast_loads, shards_csv  # noqa: PLC0415

    lake = options.open_lake(lake_path)
    with spark_command(master, meaning="; files already written are complete") as work:
        work.progress.begin("reading the lake")
        lake.need(work.spark, "usage_hourly")
        with lake.locked():  # no run may change it meanwhile
            placement = Placement(work.spark, lake, before, after, from_date=from_date, to_date=to_date)
            try:
                found = forecast_loads(placement, work.progress.begin)
                work.progress.begin("writing")
                write_page(out / "moves.csv", placement.moves())
            finally:
                placement.close()
            write_page(out / "shards.csv", shards_csv(found))
            write_page(out / "simulation.html", simulation_page(found))
    share = found.moved_tenants / found.tenants if found.tenants else 0.0
    full = [load.fullness for load in found.after if load.fullness is not None]
    return Output(
        {**found.summary(), "page": str(out / "simulation.html")},
        f"shards {found.shards_before} -> {found.shards_after}, tenants {found.tenants}, queues {found.queues}",
        f"would move {found.moved_tenants} tenants ({share:.2%}), {found.moved_queues} queues, {found.moved_bytes} bytes",
        *([f"fullest shard {max(full):.1%}, over capacity {sum(one > 1 for one in full)}"] if full else []),
        f"page: {out / 'simulation.html'}",
    )
