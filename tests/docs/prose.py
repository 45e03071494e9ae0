"""The sentences of a Markdown page, without code, tables and generated parts, and the rules for them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from docs.generate import written_text

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = Path(__file__).resolve().parents[2]
RULES = tomllib.loads((PROJECT / "docs" / "style.toml").read_text())
WRITTEN = [
    PROJECT / "README.md",
    PROJECT / "CHANGELOG.md",
    *sorted((PROJECT / "docs").rglob("*.md")),
]
_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|etc|vs)\.")


def paragraphs(page: str) -> Iterator[str]:
    """Yield every paragraph, list item, heading and table cell as plain text."""
    text = re.sub(r"^( *)```.*?^\1```", "", written_text(page), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        bare = line.strip()
        if not bare or bare.startswith(("|", "- ", "#", "!!!")) or re.match(r"\d+\. ", bare):
            if block:
                yield plain(" ".join(block))
            block = []
            if bare.startswith("|"):
                yield from (plain(cell) for cell in re.split(r"(?<!\\)\|", bare.strip("|")))
            elif bare:
                block = [re.sub(r"^(-|#+|\d+\.|!!! \w+) ", "", bare)]
            if bare.startswith("#"):
                yield plain(block.pop())
        else:
            block.append(bare)


def plain(text: str) -> str:
    """Return the text of Markdown as the reader sees it; code becomes one word."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`]*`", "code", text).replace("*", "").strip()


def sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph."""
    return re.split(r"(?<=[.!?:]) +(?=[A-Z0-9\"“(]|code)", _ABBREVIATIONS.sub(r"\1", paragraph))


def complaints(text: str) -> list[str]:
    """Return the rule violations in a text that a user can read."""
    found = [
        f"{text!r}: instead of {match[0]!r} write: {better}"
        for pattern, better in RULES["banned"].items()
        if (match := re.search(pattern, text, re.IGNORECASE))
    ]
    return found + [
        f"{len(sentence.split())} words: {sentence!r}"
        for sentence in sentences(text)
        if len(sentence.split()) > RULES["sentence_words_max"]
    ]
