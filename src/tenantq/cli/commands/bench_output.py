"""The text output of ``tenantq bench``."""

from collections.abc import Iterator
from typing import Final

import click

from tenantq.cli.output import Table, print_table
from tenantq.domain.formatting import printable, show_duration
from tenantq.load.report import BenchReport, CaseFigures

_HEADINGS: Final = ("case", "messages/s", "p50 ms", "p90 ms", "p99 ms", "max ms", "errors", "refused")
_COMPARED: Final = ("case", "messages/s then", "now", "ratio", "p50 ratio", "p99 ratio")


def print_report(report: BenchReport) -> None:
    """Print the environment and the figures."""
    for line in _heading(report):
        click.echo(line)
    print_table(Table(_HEADINGS, [_row(figures) for figures in report.cases], "nothing was measured"))
    neighbour = report.neighbour
    if neighbour is not None:
        click.echo(
            "victim with flood / without flood: "
            f"p50 {_ratio(neighbour.p50_ratio)}, p99 {_ratio(neighbour.p99_ratio)}, max {_ratio(neighbour.max_ratio)}"
        )
    if report.compared is not None:
        now = {figures.case: figures.messages_per_second for figures in report.cases}
        rows = [
            (one.case, _rate(one.messages_per_second_then), _rate(now[one.case]), one.messages_per_second_ratio,
             one.p50_ratio, one.p99_ratio)
            for one in report.compared
        ]  # fmt: skip
        print_table(Table(_COMPARED, rows, "the earlier report contains none of these cases"))


def notes(report: BenchReport) -> Iterator[str]:
    """Yield notes on the figures, one line each."""
    for figures in report.cases:
        refused = sum(figures.refusals.values())
        if refused:
            texts = "; ".join(f"{code}: {figures.texts.get(code, '')}" for code in figures.refusals)
            yield (
                f"{figures.case}: {refused:,} of {figures.calls_total:,} calls were refused by a limit, "
                f"so the results show the limit, not the server ({texts})"
            )
        for code, count in figures.errors.items():
            yield f"{figures.case}: {count:,} calls failed, {code}: {figures.texts.get(code, '')}"
        if figures.ended == "bytes":
            yield f"{figures.case}: ended after {figures.seconds:g} s, at the --bytes-max limit"
    if report.environment.durability == "os":
        yield "durability is 'os': replies precede the sync"
    if report.environment.file_system == "tmpfs":
        yield "the data was in memory (tmpfs), where a sync is free. Choose a disk with --data-dir"
    if report.unlike:
        yield f"not comparable: {'; '.join(report.unlike)}"
    if report.interrupted:
        yield "interrupted: showing results so far"
    for left in report.left_behind:
        yield f"not cleaned up: {left}"


def _heading(report: BenchReport) -> Iterator[str]:
    where, load = report.environment, report.load
    disk = f", data on {where.file_system}" if where.file_system is not None else ""
    yield (
        f"{printable(where.url)}: server {where.server_version or 'of unknown version'}, "
        f"durability {where.durability or 'unknown'}{disk}; "
        f"client {where.client_version}, Python {where.python}, {where.cores} cores"
    )
    yield (
        f"{load.in_flight:,} in flight or {load.batches_in_flight} batches of {load.batch:,}, bodies of {load.size:,} bytes, "
        f"{load.seconds:g}s each after {show_duration(load.warm_up_ms)}"
    )


def _row(figures: CaseFigures) -> tuple[object, ...]:
    times = (figures.p50_ms, figures.p90_ms, figures.p99_ms, figures.max_ms)
    failed = (sum(figures.errors.values()), sum(figures.refusals.values()))
    return (figures.case, _rate(figures.messages_per_second), *times, *failed)


def _rate(per_second: float | None) -> int | None:
    return None if per_second is None else round(per_second)


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
