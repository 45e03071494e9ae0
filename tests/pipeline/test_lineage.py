"""Lineage: the page says what the code does."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tenantq.cli.command_line import run as command_line
from tenantq.pipeline import run as runs
from tenantq.pipeline.lineage import MAKERS, as_html, as_markdown, lineage
from tenantq.pipeline.tables import TABLES
from tests.pipeline.chromium import Chromium

if TYPE_CHECKING:
    import pytest

    from tests.pipeline.conftest import WatchedLake

PROJECT = Path(__file__).resolve().parents[2]


def test_the_lineage_is_what_spark_reads(busy_lake: WatchedLake) -> None:
    """The plan by which each table was made in a real run reads exactly the tables that the page names."""
    assert set(busy_lake.read_from) == set(TABLES)
    for name, found in busy_lake.read_from.items():
        if name == "segments":
            continue  # verdicts are looked at by the driver before they are written, so their plan begins there
        # New rows go on to silver straight from the segments they are taken into bronze from; verdicts choose segments.
        seen = {"bronze" if one == "journal" and TABLES[name].layer != "bronze" else one for one in found}
        chosen = {"segments"} if TABLES[name].layer == "bronze" else set()
        if name == "quarantine":
            chosen.add("journal")  # rows are looked at first, and the plan reads them again only where some are bad
        assert seen | chosen == set(TABLES[name].sources), name


def test_every_table_is_made_by_the_functions_it_is_said_to_be_made_by() -> None:
    """All tables have makers, and the run calls each of them."""
    assert set(MAKERS) == set(TABLES)
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        for node in ast.walk(ast.parse(inspect.getsource(runs)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
    }
    for makers in MAKERS.values():
        assert {function.__name__ for function in makers} <= called
    for node in lineage():
        for maker in node.makers:
            assert f"def {maker.function}(" in (PROJECT / maker.file).read_text()


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
