"""Tables that keep the cursor on its row when they are drawn again, and show the columns that fit."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from rich.text import Text
from textual import work
from textual.coordinate import Coordinate
from textual.events import Resize
from textual.widgets import DataTable

from tenantq.console.not_granted import NOT_GRANTED_TEXT, NotGranted, known
from tenantq.console.state import error_line
from tenantq.console.table import PADDING, Cell, Column, Row, Tone, fitting, row_of, shortened
from tenantq.errors import TenantqError

READ_S: Final = 5.0
"""Interval at which a table reads its own rows."""

_STYLES: Final[dict[Tone, str]] = {
    "": "",
    "good": "green",
    "warning": "yellow",
    "critical": "bold red",
    "dim": "dim",
}
_SCROLLBAR: Final = 1
_NOTHING: Final = Cell("")


class LiveTable(DataTable[Text]):
    """Rows by key. ``empty`` is shown if there are no rows."""

    def __init__(self, columns: Sequence[Column], *, empty: str = "nothing", **options: Any) -> None:
        super().__init__(cursor_type="row", cell_padding=1, **options)
        self._known = tuple(columns)
        self._fitted: list[tuple[Column, int]] = []
        self._rows: list[Row] = []
        self._drawn: list[Row] = []
        self.empty = empty

    @property
    def current(self) -> str | None:
        """The key of the row under the cursor."""
        if not 0 <= self.cursor_row < len(self._drawn):
            return None
        return self._drawn[self.cursor_row].key

    def show(self, rows: Sequence[Row], *, empty: str | None = None) -> None:
        """Show these rows. The cursor stays on its row, or at its position if the row is gone."""
        self._rows = list(rows)
        if empty is not None:
            self.empty = empty
        self._draw()

    def point_at(self, key: str) -> None:
        """Move the cursor to a row, if it exists."""
        keys = [row.key for row in self._drawn]
        if key in keys:
            self.move_cursor(row=keys.index(key), animate=False)

    def use(self, columns: Sequence[Column]) -> None:
        """Show other columns."""
        if tuple(columns) != self._known:
            self._known = tuple(columns)
            self._fit(self.size.width)

    def on_resize(self, event: Resize) -> None:
        self._fit(event.size.width)

    def _fit(self, width: int) -> None:
        fitted = fitting(self._known, width - _SCROLLBAR)
        if fitted != self._fitted and width:
            self._fitted = fitted
            self._rebuild()

    def _draw(self) -> None:
        if not self._fitted:  # not laid out yet
            return
        if [row.key for row in self._rows] != [row.key for row in self._drawn] or not self._rows:
            self._rebuild()
            return
        for index, (row, before) in enumerate(zip(self._rows, self._drawn, strict=True)):
            for place, (column, width) in enumerate(self._fitted):
                cell = row.cells.get(column.key, _NOTHING)
                if cell != before.cells.get(column.key, _NOTHING):
                    self.update_cell_at(Coordinate(index, place), _text(cell, column, width))
        self._drawn = self._rows

    def _rebuild(self) -> None:
        current, at, top = self.current, self.cursor_row, self.scroll_y
        self.clear(columns=True)
        if not self._rows:
            self.add_column("", width=max(1, self.size.width - PADDING))
            self.add_row(Text(self.empty, style="dim"))
        for column, width in self._fitted if self._rows else ():
            self.add_column(
                Text(column.heading, justify="right" if column.right else "left"), key=column.key, width=width
            )
        for row in self._rows:
            texts = [_text(row.cells.get(column.key, _NOTHING), column, width) for column, width in self._fitted]
            self.add_row(*texts, key=row.key)
        self._drawn = self._rows
        keys = [row.key for row in self._rows]
        place = keys.index(current) if current in keys else min(at, len(keys) - 1)
        if keys:
            self.move_cursor(row=max(0, place), animate=False, scroll=False)
            self.scroll_to(y=top, animate=False)
        self.show_cursor = bool(keys)


class ReadTable(LiveTable):
    """A table of the items that ``read`` returns. It reads them while it is shown; ``key`` identifies an item."""

    def __init__(
        self,
        columns: Sequence[Column],
        key: Callable[[Any], str],
        read: Callable[[], Awaitable[Sequence[Any] | NotGranted]],
        *,
        nothing: str,
        **options: Any,
    ) -> None:
        super().__init__(columns, empty="…", **options)
        self._key_of, self._read, self._nothing = key, read, nothing
        self._items: dict[str, Any] = {}

    @property
    def item(self) -> Any:
        """The item under the cursor, or None."""
        return self._items.get(self.current or "")

    def on_mount(self) -> None:
        self.set_interval(READ_S, self.reload)
        self.reload()

    @work(group="page", exclusive=True)
    async def reload(self) -> None:
        """Read the items, or show in one line why that failed. The last items stay while the server is unreachable."""
        try:
            found = await self._read()
        except TenantqError as error:
            empty = error_line(error)
        else:
            empty = NOT_GRANTED_TEXT if isinstance(found, NotGranted) else self._nothing
            self._items = {self._key_of(one): one for one in known(found) or ()}
        if self.is_attached:
            self.show([row_of(self._known, key, one) for key, one in self._items.items()], empty=empty)


def _text(cell: Cell, column: Column, width: int) -> Text:
    text = shortened(cell.text, column, width)
    return Text(text, style=_STYLES[cell.tone], justify="right" if column.right else "left", no_wrap=True)
