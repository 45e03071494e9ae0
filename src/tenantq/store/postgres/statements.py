"""The SQL of the store, from the ``.sql`` files of this package. Each statement follows a line ``-- name: ...``."""

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def _texts() -> dict[str, str]:
    """Return all statements by name."""
    texts: dict[str, str] = {}
    for file in sorted(Path(__file__).parent.glob("*.sql")):
        _, *parts = _NAME.split(file.read_text(encoding="utf-8"))
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            assert name not in texts, f"two statements are named {name}"
            texts[name] = text.strip().removesuffix(";")
    return texts


class Statements:
    """The statements for one schema, and for one shard of it."""

    def __init__(self, schema: str, shard: str = "") -> None:
        """Prepare. Both names are checked: they need no escaping inside quotes."""
        names = {"{schema}": f'"{schema}"', "{rows}": f'"{schema}"."rows_{shard}"', "{shard}": shard}
        self._ready: dict[str, Any] = {}
        for name, text in _texts().items():
            for place, value in names.items():
                text = text.replace(place, value)  # noqa: PLW2901  # step by step
            self._ready[name] = text

    def __getitem__(self, name: str) -> Any:
        return self._ready[name]
