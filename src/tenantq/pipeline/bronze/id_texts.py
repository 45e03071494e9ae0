"""Message ids as text, many at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

ID_BYTES: Final = 16
_TEXT: Final = 36
_DIGITS: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), "u1").reshape(256, 2)
_GROUPS: Final = (
    (0, 4, 0),
    (4, 6, 9),
    (6, 8, 14),
    (8, 10, 19),
    (10, 16, 24),
)  # bytes from, to, and where their text begins


def id_texts(ids: bytes) -> Any:
    """Return an Arrow array with the usual text of each id; ``ids`` are 16 bytes each, one after the other."""
    raw = np.frombuffer(ids, "u1").reshape(-1, ID_BYTES)
    text = np.full((len(raw), _TEXT), ord("-"), "u1")
    digits = _DIGITS[raw]
    for first, last, at in _GROUPS:
        text[:, at : at + 2 * (last - first)] = digits[:, first:last].reshape(len(raw), 2 * (last - first))
    offsets = np.arange(0, (len(raw) + 1) * _TEXT, _TEXT, dtype="i4")
    return pa.StringArray.from_buffers(len(raw), pa.py_buffer(offsets), pa.py_buffer(text))
