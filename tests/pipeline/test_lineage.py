"""Lineage: the page says what the code does."""

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


def test_the_lineage_is_what_spark_reads(busy_lake: WatchedLake) -> None:
    """The plan by which each table was made in a real run reads exactly the tables that the page names."""
    assert set(busy_lake.read_from) == set(TABLES) - {"invoice_corrections"}  # no month is closed
    for name, found in busy_lake.read_from.items():
        if name in {"segments", "invoice_lines"}:
            continue  # the driver computes their rows, so their plan begins there
        # New rows go to silver straight from the segments; the plan reads rows for the quarantine only if some are bad.
        seen = {"bronze" if one == "journal" and TABLES[name].layer != "bronze" else one for one in found}
        seen |= {"queue_resets"} & set(TABLES[name].sources)  # few rows, which are part of the plan
        assert seen | ({"journal"} if name == "quarantine" else set()) == set(TABLES[name].sources), name


def test_each_table_is_computed_by_the_function_of_its_name_in_a_file_of_its_own() -> None:
    """The registry's sources come first, and the page names the function and its file."""
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


def test_the_page_holds_together_in_a_browser(tmp_path: Path) -> None:
    """Every table is on it and reachable; it is no wider than a phone and asks for nothing."""
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


def test_the_command_writes_what_the_name_asks_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """HTML, Markdown, or JSON on stdout; another ending is refused."""
    assert command_line(["pipeline", "lineage", "--out", str(tmp_path / "a.md")]) == 0
    assert (tmp_path / "a.md").read_bytes() == as_markdown(lineage())
    capsys.readouterr()
    assert command_line(["pipeline", "lineage", "--json"]) == 0
    assert {one["name"] for one in msgspec.json.decode(capsys.readouterr().out)} == set(TABLES)
    assert command_line(["pipeline", "lineage", "--out", str(tmp_path / "a.pdf")]) == 2
