"""Reduction: what tables need of the rows of a file, computed once by the task that writes the file.

This way new rows are not read again for each table. Reduced rows are in files next to the staged ones until the commit.
Files of earlier runs are read and reduced by the tasks of the table, with the same function.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
from numpy.typing import NDArray

from tenantq.pipeline.arrow_columns import decoded, numbers
from tenantq.pipeline.silver.life_days import date_texts

REDUCED: Final = ".arrow"
"""Suffix of files with reduced rows: Arrow tables, one after another."""
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")
Reduce = Callable[[pa.Table], list[pa.Table]]
"""Returns what a table needs of the rows of a file: one table or several, or none if it needs nothing."""


class Reduction(msgspec.Struct, frozen=True):
    """What a table needs of the rows of a file: sums, or ``few_rows`` of them."""

    columns: tuple[str, ...]
    function: Callable[..., list[pa.Table]]  # takes rows, then ``parameters`` by name
    parameters: tuple[str, ...] = ()  # values of the run; see run.py

    def given(self, values: Mapping[str, Any]) -> Reduce:
        """Return the function with its parameters."""
        return partial(self.function, **{name: values[name] for name in self.parameters})


def unreduced(rows: pa.Table) -> list[pa.Table]:
    """Return the rows themselves."""
    return [rows]


def few_rows(rows: pa.Table, wanted: NDArray[Any], columns: Sequence[str]) -> list[pa.Table]:
    """Return ``columns`` of the rows that are ``wanted``, and their date."""
    if not wanted.any():
        return []
    found = rows.select(columns).filter(pa.array(wanted))
    return [decoded(found.append_column("date", date_texts(numbers(found["ts"]))))]


def write_reduced(file: Path, tables: list[pa.Table]) -> None:
    """Write reduced rows. A task may run more than once: equal rows give equal files, whichever comes last."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(f".{uuid.uuid4().hex}")
    with pa.OSFile(str(draft), "wb") as sink:
        for table in tables:
            with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as stream:
                stream.write_table(table)
    draft.rename(file)


def read_reduced(file: str) -> list[pa.Table]:
    """Return reduced rows."""
    found = []
    with pa.OSFile(file) as source:
        while source.tell() < source.size():
            found.append(pa.ipc.open_stream(source).read_all())
    return found
