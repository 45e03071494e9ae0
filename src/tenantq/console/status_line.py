"""The line that says when what is shown is old, and why."""

from __future__ import annotations

from textual.widgets import Static


class StatusLine(Static):
    """Nothing to say, no line."""

    def __init__(self) -> None:
        super().__init__("", markup=False, classes="status")
        self.display = False

    def say(self, trouble: str) -> None:
        """Say why the figures are old; nothing: they are not."""
        self.display = bool(trouble)
        self.update(f"⚠ {trouble}" if trouble else "")
