"""``tenantq pipeline lineage``: show the sources of each table."""

from pathlib import Path

import click

from tenantq.cli.commands.pipeline import options
from tenantq.cli.options import FILE
from tenantq.cli.output import Output, output_command
from tenantq.errors import Invalid


@output_command()
@click.option("--out", type=FILE, help="Output file: .html with a diagram, or .md.")
def lineage(*, out: Path | None) -> Output:
    """Show each table's sources, columns, partitions and function. Requires neither a lake nor Java."""
    with options.extras():
        from tenantq.pipeline import lineage as lines  # noqa: PLC0415  # columns need PySpark
        from tenantq.pipeline.page.renderer import write_page  # noqa: PLC0415
    nodes = lines.lineage()
    if out is not None:
        written = {".html": lines.as_html, ".md": lines.as_markdown}.get(out.suffix)
        if written is None:
            raise Invalid(f"--out {out}: must end in .html or .md")
        write_page(out, written(nodes))
        return Output(nodes, f"lineage: {out}")
    return Output(nodes, *[f"{node.name} ({node.layer}) from {', '.join(node.sources)}" for node in nodes])
