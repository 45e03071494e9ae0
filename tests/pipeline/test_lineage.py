"""Lineage: the page matches the code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tenantq.cli.command_line import run as command_line
from tenantq.pipeline.lineage import as_html, as_markdown, lineage
from tenantq.pipeline.tables import JOURNAL, TABLES
from tests.pipeline.chromium import Chromium

if TYPE_CHECKING:
    import pytest

    from tests.pipeline.conftest import WatchedLake

PROJECT = Path(__file__).resolve().parents[2]


def test_the_lineage_matches_what_spark_reads(busy_lake: WatchedLake) -> None:
    """In a real run, the plan of each table reads exactly the tables that the page names."""
    assert set(busy_lake.read_from) == set(TABLES) - {"invoice_corrections"}  # no month is closed
    for name, found in busy_lake.read_from.items():
        if name in {"segments", "queue_resets", "invoice_lines"}:
            continue  # the driver computes their rows, so their plans have no source
        # New rows go to silver directly from the segments; the plan reads quarantine rows only if there are bad ones.
        seen = {"bronze" if one == "journal" and TABLES[name].layer != "bronze" else one for one in found}
        seen |= {"queue_resets"} & set(TABLES[name].sources)  # a few rows that are part of the plan itself
        assert seen | ({"journal"} if name == "quarantine" else set()) == set(TABLES[name].sources), name


def test_each_table_is_computed_by_a_function_and_file_of_its_name() -> None:
    """Its first parameters are the registered sources, and the page names the function and its file."""
    files = set()
    seen = {JOURNAL}
    for node in lineage():
        assert seen.issuperset(node.sources)
        seen.add(node.name)
        (maker,) = node.makers
        assert maker.function == node.name
        assert f"def {maker.function}(" in (PROJECT / maker.file).read_text()
        files.add(maker.file)
    assert len(files) == len(TABLES)


def test_the_page_works_in_a_browser(tmp_path: Path) -> None:
    """Every table is on it and reachable; it fits a phone and makes no requests."""
    page = tmp_path / "lineage.html"
    page.write_bytes(as_html(lineage()))
    with Chromium() as browser:
        for width in (390, 1280):
            seen = browser.open(page, width)
            assert browser.read("document.documentElement.scrollWidth") == width
            assert (seen.requests, seen.complaints) == ([], [])
        assert set(browser.read("[...document.querySelectorAll('section')].map(one => one.id)")) == set(TABLES)
        assert browser.read(
            "[...document.querySelectorAll('a[href^=\"#\"]')].every(one => document.getElementById(one.hash.slice(1)))"
        )


def test_the_command_chooses_the_format_by_file_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """HTML, Markdown, or JSON on stdout; another extension is refused."""
    assert command_line(["pipeline", "lineage", "--out", str(tmp_path / "a.md")]) == 0
    assert (tmp_path / "a.md").read_bytes() == as_markdown(lineage())
    capsys.readouterr()
    assert command_line(["pipeline", "lineage", "--json"]) == 0
    assert {one["name"] for one in msgspec.json.decode(capsys.readouterr().out)} == set(TABLES)
    assert command_line(["pipeline", "lineage", "--out", str(tmp_path / "a.pdf")]) == 2
