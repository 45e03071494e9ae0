"""Plain tables of figures."""

from __future__ import annotations


class Table:
    """Rows of text, aligned when shown."""

    def __init__(self, *heads: str) -> None:
        self.rows: list[tuple[str, ...]] = [heads]

    def row(self, *cells: object) -> None:
        """Add a row."""
        self.rows.append(tuple(str(cell) for cell in cells))

    def show(self) -> None:
        """Print all rows."""
        widths = [max(len(row[i]) for row in self.rows) for i in range(len(self.rows[0]))]
        for row in self.rows:
            print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)), flush=True)


def percentile(values: list[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
