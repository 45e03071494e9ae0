"""``tenantq pipeline lineage``: which table comes from which."""

from __future__ import annotations

from pathlib import Path

import click

from tenantq.cli.output import print_json
from tenantq.cli.pipeline import options
from tenantq.errors import Invalid


@click.command()
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Where the page goes: .html with a drawing, .md for documentation.",
)  # fmt: skip
@options.as_json
def lineage(*, out: Path | None, as_json: bool) -> None:
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
    if as_json:
        print_json(nodes)
    elif out is None:
        for node in nodes:
            click.echo(f"{node.name} ({node.layer}) from {', '.join(node.sources)}")
    else:
        click.echo(f"lineage: {out}")
