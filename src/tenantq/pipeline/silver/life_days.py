"""The day in which a message's id was created: the first 48 bits of a UUIDv7 are milliseconds."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tenantq.pipeline.arrow_columns import distinct, id_text

LAST_DAY: Final = 2_932_896  # of the year 9999
DAY_MS: Final = 86_400_000
DAY_US: Final = DAY_MS * 1_000
_ID_CHARS: Final = 36
_TIME_DIGITS: Final = (*range(8), *range(9, 13))
_WRONG: Final = 1 << 60
_DIGITS: Final = np.full(256, _WRONG, "i8")
_DIGITS[np.frombuffer(b"0123456789abcdef", "u1")] = np.arange(16)
_DIGITS[np.frombuffer(b"ABCDEF", "u1")] = np.arange(10, 16)


def life_days(ids: pa.Array) -> NDArray[Any]:
    """Return the day of each id, counted since 1970. Ids of another form belong to the first day."""
    text = id_text(ids)
    if text is None:
        days = np.zeros(len(ids), "i8")
        proper = pc.equal(pc.binary_length(ids), _ID_CHARS).fill_null(False).to_numpy(zero_copy_only=False)
        days[proper] = life_days(pa.concat_arrays([ids.filter(pa.array(proper))]))
        return days
    ms, wrong = np.zeros(len(text), "i8"), np.zeros(len(text), "?")
    for at in _TIME_DIGITS:
        digit = _DIGITS[text[:, at]]
        wrong |= digit == _WRONG
        ms = ms * 16 + digit
    return np.where(wrong, 0, np.minimum(ms // DAY_MS, LAST_DAY))


def date_texts(us: NDArray[Any]) -> pa.DictionaryArray:
    """Return the date of each time."""
    days, at = distinct(us // DAY_US)
    return pa.DictionaryArray.from_arrays(pa.array(at, pa.int32()), pa.array([str(np.datetime64(int(day), "D")) for day in days], pa.string()))  # fmt: skip
