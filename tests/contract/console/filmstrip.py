"""Screens of the console, one below the other, in one small SVG."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from rich.color_triplet import ColorTriplet

if TYPE_CHECKING:
    from rich.style import Style

    from tenantq.console.app import ConsoleApp

CELL, LINE, GAP, CAPTION = 7.2, 15, 16, 24
BACKGROUND = "#121212"
FONT = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Filmstrip:
    """Collects screens with captions."""

    def __init__(self, size: tuple[int, int]) -> None:
        self._width, self._height = size[0] * CELL, size[1] * LINE
        self._parts: list[str] = []
        self._classes: dict[str, str] = {}
        self.captions: list[str] = []

    def add(self, caption: str, app: ConsoleApp) -> None:
        """Add the current screen."""
        top = len(self.captions) * (CAPTION + self._height + GAP)
        self.captions.append(caption)
        parts = [f'<text class="c" x="0" y="{top + 16}">{len(self.captions)}. {escape(caption)}</text>']
        parts.append(f'<svg y="{top + CAPTION}" width="{self._width:g}" height="{self._height}">')
        parts.append(f'<rect width="100%" height="100%" rx="6" fill="{BACKGROUND}"/>')
        for row, strip in enumerate(app.screen._compositor.render_strips()):
            parts += self._line(row, strip)
        self._parts += [*parts, "</svg>"]

    def svg(self) -> str:
        """Return the picture."""
        height = len(self.captions) * (CAPTION + self._height + GAP)
        style = f"text{{font:12px {FONT};white-space:pre}} .c{{font:bold 14px system-ui,sans-serif;fill:#777}}"
        style += "".join(f".{name}{{{rule}}}" for rule, name in self._classes.items())
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width:g} {height}">'
        return "\n".join([head, f"<style>{style}</style>", *self._parts, "</svg>"]) + "\n"

    def _line(self, row: int, strip: Any) -> list[str]:
        """Return a line: its backgrounds, then its text in runs of one style."""
        boxes: list[str] = []
        spans: list[str] = []
        x = 0
        for (shown, back, bold), parts in groupby(strip, key=lambda part: _style(part.style)):
            text = "".join(part.text for part in parts)
            if back != BACKGROUND:
                place = f'x="{x * CELL:g}" y="{row * LINE}" width="{len(text) * CELL:g}" height="{LINE}"'
                boxes.append(f'<rect class="{self._name(f"fill:{back}")}" {place}/>')
            if kept := text.strip():
                left = (x + len(text) - len(text.lstrip())) * CELL
                name = self._name(f"fill:{shown}{';font-weight:bold' if bold else ''}")
                length = len(kept) * CELL
                spans.append(f'<tspan class="{name}" x="{left:g}" textLength="{length:g}">{escape(kept)}</tspan>')
            x += len(text)  # the console shows no wide characters
        return [*boxes, f'<text y="{row * LINE + 11}">{"".join(spans)}</text>'] if spans else boxes

    def _name(self, rule: str) -> str:
        return self._classes.setdefault(rule, f"s{len(self._classes)}")


def _style(style: Style | None) -> tuple[str, str, bool]:
    """Return the colours of text and background, and whether it is bold; dim and reversed text as terminals show it."""
    front = _hex(style.color.get_truecolor() if style and style.color else None) or "#e0e0e0"
    back = _hex(style.bgcolor.get_truecolor(foreground=False) if style and style.bgcolor else None) or BACKGROUND
    if style is not None and style.reverse:
        front, back = back, front
    if style is not None and style.dim:
        front = "#8a8a8a"
    return front, back, bool(style is not None and style.bold)


def _hex(color: ColorTriplet | None) -> str:
    return color.hex if color is not None else ""
