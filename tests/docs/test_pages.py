"""The documentation is consistent: generated parts are current, links resolve, and code blocks parse."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

from docs.generate import pages
from tests.docs.prose import PROJECT, WRITTEN
from tests.docs.sessions import COMMAND
from tests.pipeline.chromium import Chromium

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCS = PROJECT / "docs"
BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
LANGUAGES = {"", "bash", "console", "ini", "python", "text", "toml", "yaml"}
HOW_TO = {
    "move-from-celery", "move-from-sqs", "add-a-tenant", "encrypt-a-tenant", "serve-many-tenants", "find-a-slow-queue",
    "redrive-dead-letters", "back-up-and-restore", "upgrade", "run-several-shards", "alert-on-a-queue",
    "read-the-audit-trail", "erase-a-tenant", "bill-customers", "troubleshoot",
}  # fmt: skip


def test_generated_parts_are_current() -> None:
    """Run ``make docs`` after changing commands, settings, routes, roles, SQS actions or tables."""
    stale = [str(path.relative_to(PROJECT)) for path, text, made in pages() if text != made]
    assert not stale, f"run 'make docs' and commit: {stale}"


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(PROJECT)))
def test_code_blocks_are_valid(path: Path) -> None:
    """Python, TOML and JSON parse, and bash accepts shell scripts."""
    for _, language, text in BLOCK.findall(path.read_text()):
        code = re.sub(r"^ {4}", "", text, flags=re.MULTILINE) if text.startswith("    ") else text
        assert language in LANGUAGES, language
        if language == "python":
            ast.parse(code)
        elif language == "toml":
            tomllib.loads(code)
        elif language == "json":
            json.loads(code)
        elif language in {"bash", "console"}:
            script = code if language == "bash" else "\n".join(re.findall(COMMAND, code, re.MULTILINE))
            done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), (script, done.stderr)


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(PROJECT)))
def test_no_conflict_of_a_merge_is_left(path: Path) -> None:
    """A page is one text, not two versions of it."""
    assert re.findall(r"^(?:<{7}|={7}|>{7})(?: .*)?$", path.read_text(), re.MULTILINE) == []


def test_every_how_to_answers_one_question() -> None:
    """Its title is the question, and all promised pages exist."""
    found = {path.stem: path.read_text() for path in (DOCS / "how-to").glob("*.md") if path.stem != "index"}
    assert set(found) >= HOW_TO
    for name, text in found.items():
        assert re.match(r"# How do I [^\n]*\?\n", text), name
        assert len(text.split()) < 600, name


def test_paths_of_source_files_exist() -> None:
    """Modules and packages that the internals name are in src/tenantq or in the repository."""
    for name in ("architecture", "extending", "testing"):
        text = (DOCS / "internals" / f"{name}.md").read_text()
        found = re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?|\w+\.py|(?:src|tests)/\w+)`", text)
        assert found
        for path in found:
            assert (PROJECT / "src" / "tenantq" / path).exists() or (PROJECT / path).exists(), (name, path)


def test_the_code_refers_to_pages_that_exist() -> None:
    """Comments and messages name pages by their path."""
    for path in (PROJECT / "src").rglob("*"):
        if path.suffix in {".py", ".md", ".html", ".lua"}:
            for page in re.findall(r"docs/[\w/-]+\.md", path.read_text()):
                assert (PROJECT / page).exists(), (path, page)


def test_every_behaviour_that_tests_cite_is_listed() -> None:
    """By its number."""
    listed = set(map(int, re.findall(r"^(\d+)\. ", (DOCS / "internals" / "behaviours.md").read_text(), re.MULTILINE)))
    assert listed == set(range(1, 73))
    for path in (PROJECT / "tests").rglob("*.py"):
        for first, more in re.findall(r"[Bb]ehaviours? (\d+)((?:(?:, | and )\d+)*)", path.read_text()):
            cited = {int(first), *map(int, re.findall(r"\d+", more))}
            assert cited <= listed, (path, cited)
        for number in re.findall(r"^(?:async )?def test_(\d+)_", path.read_text(), re.MULTILINE):
            assert int(number) in listed, (path, number)


def test_links_in_the_readme_and_changelog_resolve() -> None:
    """To files and headings of this repository. MkDocs checks links between pages."""
    for path in (PROJECT / "README.md", PROJECT / "CHANGELOG.md"):
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", path.read_text()):
            found = path.parent / target
            assert found.exists(), target
            if anchor:
                headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


class _Assets(HTMLParser):
    """Collects what a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the sources of scripts, styles, images and fonts."""
        given = dict(attrs)
        if tag in {"script", "img", "iframe", "source"} and given.get("src"):
            self.loaded.add(str(given["src"]))
        if tag == "link" and given.get("rel") in {"stylesheet", "preconnect", "icon", "preload"}:
            self.loaded.add(str(given.get("href")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site in strict mode: a broken link or anchor, or a page outside the navigation, is an error."""
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(place)],
        capture_output=True, text=True, check=False, cwd=PROJECT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return place


def _html(site: Path) -> Iterator[tuple[Path, str]]:
    for path in site.rglob("*.html"):
        yield path, path.read_text()


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    """Neither fonts nor scripts: it works offline and from the file system."""
    for path, text in _html(site):
        reader = _Assets()
        reader.feed(text)
        assert not [one for one in reader.loaded if re.match(r"(https?:)?//", one)], path
    for picture in (DOCS / "images").glob("*.svg"):
        assert not re.findall(r"(?:url\(|href=|src=)[\"']?https?:", picture.read_text()), picture


@pytest.mark.parametrize("width", [390, 1280])
def test_the_site_fits_phones_and_laptops(site: Path, width: int) -> None:
    """No page is wider than the screen; code scrolls inside its block, and tables become cards on a phone."""
    with Chromium() as browser:
        for path in sorted(site.rglob("*.html")):
            browser.open(path, width)
            assert browser.read("document.documentElement.scrollWidth") == width, path


def test_the_site_has_search_and_every_command(site: Path) -> None:
    """The index has words of all four sections; the commands are expanded."""
    index = next(iter([*site.glob("search/search_index.js*")])).read_text()
    for word in ("corner-shop", "redrive", "tenantq_rounds_total", "start-time fair queueing"):
        assert word in index.lower(), word
    assert "tenantq-pipeline-run" in (site / "reference" / "commands.html").read_text()
