"""``tenantq pipeline lineage``: which table comes from which."""

from __future__ import annotations

from pathlib import Path

import click

from tenantq.cli.output import Output, prints_output
from tenantq.cli.pipeline import options
from tenantq.errors import Invalid


@click.command()
@prints_output
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Where the page goes: .html with a drawing, .md for documentation.",
)  # fmt: skip
def lineage(*, out: Path | None) -> Output:
    """Show which table comes from which, its columns, partitions and the function that makes it. Needs no lake and no Java."""
    with options.extras():
        from tenantq.pipeline import lineage as lines  # noqa: PLC0415  # columns need PySpark
        from tenantq.pipeline.page.rendering import write_page  # noqa: PLC0415
    nodes = lines.lineage()
    if out is not None:
        written = {".html": lines.as_html, ".md": lines.as_markdown}.get(out.suffix)
        if written is None:
            raise Invalid(f"--out {out}: the name ends in .html or .md, which says what is written")
        write_page(out, written(nodes))
        return Output(nodes, f"lineage: {out}")
    return Output(nodes, *[f"{node.name} ({node.layer}) from {', '.join(node.sources)}" for node in nodes])
