"""A file's bytes do not tell which process wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tenantq.pipeline.parquet_footer import settle

if TYPE_CHECKING:
    from pathlib import Path


def test_encodings_are_put_in_order_and_nothing_else_changes(tmp_path: Path) -> None:
    """A file with the list in another order becomes the same file; rows and statistics are what they were."""
    file, other = tmp_path / "one.parquet", tmp_path / "other.parquet"
    rows = pa.table({"name": ["a", "b"] * 50, "deep": [[{"x": 1, "y": None}], []] * 50, "flag": [True, False] * 50})
    pq.write_table(rows, file, row_group_size=30)
    settle(file)
    data = file.read_bytes()
    settled = bytes([0x19, 0x35, *sorted(data[data.rindex(b"\x19\x35") + 2 :][:3])])  # a field, a list of three numbers
    assert data.count(settled)
    other.write_bytes(data.replace(settled, settled[:2] + settled[:1:-1]))
    assert other.read_bytes() != data
    settle(other)
    assert other.read_bytes() == data
    assert pq.read_table(file).equals(rows)
    assert pq.read_metadata(file).num_row_groups == 4


def test_what_is_no_parquet_is_left_alone(tmp_path: Path) -> None:
    """Neither a short file nor one with a wrong length is touched."""
    for data in (b"", b"PAR1", b"x" * 100, b"\xff\xff\xff\x7fPAR1"):
        (tmp_path / "odd").write_bytes(data)
        settle(tmp_path / "odd")
        assert (tmp_path / "odd").read_bytes() == data
