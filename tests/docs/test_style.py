"""Sentences in the documentation are plain: no banned phrases, none too long, no misspelled words."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from docs.generate import walk
from tenantq.cli.command_line import tenantq as command_line
from tests.docs.product_texts import product_complaints
from tests.docs.prose import PROJECT, WRITTEN, complaints, paragraphs, sentences

if TYPE_CHECKING:
    from pathlib import Path

WORDS_MAX = 40_000
COMPLAINTS_LEFT = 0


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(PROJECT)))
def test_sentences_are_plain(path: Path) -> None:
    """See docs/style.toml for the rules. Texts from the code are checked where they are written."""
    found = [complaint for paragraph in paragraphs(path.read_text()) for complaint in complaints(paragraph)]
    assert not found, "\n".join(found)


def test_the_rules_find_violations() -> None:
    """A sentence of 41 words, and wordings that the product once had."""
    assert complaints(" ".join(["word"] * 41) + ".")
    assert not complaints(" ".join(["word"] * 40) + ".")
    for text in (
        "Who may not make a call is told that",
        "What breaks off is gone on with by the same command",
        "Let principals of elsewhere work in a tenant",
        "A queue comes into being with its first message",
        "the server at hand",
    ):
        assert complaints(text), text
    assert sentences("One is here. Two is there: three.") == ["One is here.", "Two is there: three."]


def test_texts_of_the_product_get_no_worse() -> None:
    """Error messages, help and logs follow the same rules. Lower the number when you rewrite some; it ends at 0.

    ``python -m tests.docs.product_texts PACKAGE`` lists what is left.
    """
    found = product_complaints()
    assert len(found) <= COMPLAINTS_LEFT, "\n".join(found)


def test_the_documentation_is_short() -> None:
    """At most 40,000 words by wc, including generated parts and decisions."""
    assert sum(len(path.read_text().split()) for path in (PROJECT / "docs").rglob("*.md")) <= WORDS_MAX


def test_words_are_spelled_correctly(tmp_path: Path) -> None:
    """In the documentation and in the help of every command."""
    for path, command in walk(command_line, "tenantq"):
        text = command.get_help(click.Context(command, info_name=path))
        (tmp_path / f"{path.replace(' ', '-')}.txt").write_text(text)
    places = ["README.md", "CHANGELOG.md", "docs", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "codespell_lib", *places], capture_output=True, text=True, check=False, cwd=PROJECT
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
