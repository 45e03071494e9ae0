"""A box around a few lines that must not be overlooked, such as a secret that is shown once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def boxed(title: str, lines: Sequence[str]) -> str:
    """Return the lines in a box that is as wide as they are."""
    width = max(len(line) for line in (f" {title} ", *lines))
    top = f"┌─ {title} ".ljust(width + 3, "─") + "┐"
    return "\n".join([top, *(f"│ {line:{width}} │" for line in lines), f"└{'─' * (width + 2)}┘"])
