"""Arrow columns as NumPy arrays: numbers, and texts as ranks in a sorted vocabulary."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

TIME: Final = pa.timestamp("us", "UTC")
_ID_CHARS: Final = 36
_WORDS: Final = (0, 8, 16, 24, 28)  # where 8 bytes of an id's text begin
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31))
_NEAR: Final = 100_000  # numbers that are so near to each other are told apart by a table, without sorting them


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column in one piece."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    return column.combine_chunks()


def numbers(column: pa.ChunkedArray | pa.Array, missing: int = 0) -> NDArray[Any]:
    """Return integers, or microseconds of times; nulls are ``missing``."""
    column = whole(column)
    if pa.types.is_timestamp(column.type):
        column = column.cast(TIME).cast(pa.int64())
    if column.null_count:
        column = column.fill_null(missing)
    found: NDArray[Any] = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def times(us: NDArray[Any], known: NDArray[Any] | None = None) -> pa.Array:
    """Return microseconds as times; null where they are not ``known``."""
    return pa.array(us, pa.int64(), mask=None if known is None else ~known).cast(TIME)


def texts(column: pa.ChunkedArray | pa.Array) -> pa.DictionaryArray:
    """Return texts as a dictionary."""
    found = whole(column)
    return found if pa.types.is_dictionary(found.type) else found.cast(pa.string()).dictionary_encode()


class Vocabulary:
    """The different texts of some columns in the order of their bytes, and each column as ranks in it; null is -1."""

    def __init__(self, *columns: pa.ChunkedArray | pa.Array) -> None:
        encoded = [texts(column) for column in columns]
        words = [one.dictionary.to_pylist() for one in encoded]
        self.words: list[str] = sorted({word for some in words for word in some if word is not None})
        self.rank: dict[str | None, int] = {word: at for at, word in enumerate(self.words)}
        self.ranks = [
            np.array([self.rank.get(word, -1) for word in some] + [-1], "i8")[
                numbers(one.indices, len(some))  # nulls take the last
            ]
            for one, some in zip(encoded, words, strict=True)
        ]

    def array(self, ranks: NDArray[Any]) -> pa.DictionaryArray:
        """Return the texts of ranks."""
        return pa.DictionaryArray.from_arrays(
            pa.array(ranks, pa.int32(), mask=ranks < 0 if (ranks < 0).any() else None),
            pa.array(self.words, pa.string()),
        )

    def marked(self, ranks: NDArray[Any], wanted: Iterable[str]) -> NDArray[Any]:
        """Return which of the ranks belong to one of these texts."""
        among = np.zeros(len(self.words) + 1, "?")  # the last is null
        among[[self.rank[word] for word in wanted if word in self.rank]] = True
        found: NDArray[Any] = among[ranks]
        return found


def id_text(ids: pa.Array) -> NDArray[Any] | None:
    """Return the bytes of ids, a row each; None if some do not have the length of a UUID."""
    if not len(ids):
        return np.zeros((0, _ID_CHARS), "u1")
    if ids.null_count or pc.min_max(pc.binary_length(ids)).as_py() != {"min": _ID_CHARS, "max": _ID_CHARS}:
        return None
    start = int(np.frombuffer(ids.buffers()[1], "i4", 1, ids.offset * 4)[0])
    return np.frombuffer(ids.buffers()[2], "u1", len(ids) * _ID_CHARS, start).reshape(-1, _ID_CHARS)


def id_hashes(ids: pa.Array) -> NDArray[Any]:
    """Return a hash of each id. It is the same in all processes and versions."""
    text = id_text(ids)
    if text is None:
        return mixed(np.array([zlib.crc32((one or "").encode()) for one in ids.to_pylist()], "u8"))
    found = np.zeros(len(text), "u8")
    for at in _WORDS:
        found = mixed(found ^ np.ascontiguousarray(text[:, at : at + 8]).view("<u8")[:, 0])
    return found


def record_hashes(shards: pa.ChunkedArray | pa.Array, seq: NDArray[Any]) -> NDArray[Any]:
    """Return a hash of each record: all rows of a record have the same one."""
    vocabulary = Vocabulary(shards)
    of_shard = np.array([zlib.crc32(word.encode()) for word in vocabulary.words] + [0], "u8") << np.uint64(32)
    return mixed(of_shard[vocabulary.ranks[0]] ^ seq.astype("u8"))


def mixed(value: NDArray[Any]) -> NDArray[Any]:
    """Spread 64 bits (the finalizer of splitmix64)."""
    value = (value ^ (value >> _SHIFTS[0])) * _MULTIPLIERS[0]
    value = (value ^ (value >> _SHIFTS[1])) * _MULTIPLIERS[1]
    found: NDArray[Any] = value ^ (value >> _SHIFTS[2])
    return found


def by_part(parts: NDArray[Any], rows: pa.Table) -> Iterable[tuple[int, pa.Table]]:
    """Yield the rows of each part, in their order."""
    if not len(parts):
        return
    if (parts == parts[0]).all():
        yield int(parts[0]), rows
        return
    order = in_order(parts)
    starts = group_starts(parts[order])
    taken = rows.take(pa.array(order))
    for part, start, end in zip(
        parts[order[starts]].tolist(), starts.tolist(), [*starts.tolist()[1:], len(parts)], strict=True
    ):
        yield part, taken.slice(start, end - start)


def group_starts(*sorted_keys: NDArray[Any]) -> NDArray[Any]:
    """Return where groups of equal keys begin."""
    changes = np.zeros(len(sorted_keys[0]), "?")
    changes[:1] = True
    for key in sorted_keys:
        changes[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changes)


def in_order(key: NDArray[Any]) -> NDArray[Any]:
    """Return the stable order of rows by an integer.

    The place of each row becomes a part of its number, because sorting numbers is mostly faster than ``argsort``: 1.5 times
    with many different keys, but slower with few.
    """
    key, count = np.asarray(key, "i8"), len(key)
    if not count or (key[1:] >= key[:-1]).all():
        return np.arange(count)
    low, bits = int(key.min()), count.bit_length()
    if (int(key.max()) - low + 1) << bits >= 1 << 63:
        return np.argsort(key, kind="stable")
    places = ((key - low) << bits) | np.arange(count)
    places.sort()
    found: NDArray[Any] = places & ((1 << bits) - 1)
    return found


def ordered(keys: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the stable order of rows by ``keys``, integers, the most important first."""
    if not len(keys[0]):
        return np.zeros(0, "i8")
    lows = [int(key.min()) for key in keys]
    spans = [int(key.max()) - low + 1 for key, low in zip(keys, lows, strict=True)]
    if prod(spans) >= 1 << 62:
        return np.lexsort(keys[::-1])
    return in_order(combined([key - low for key, low in zip(keys, lows, strict=True)], spans))


def distinct(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the different integers in their order, and the place of each row's value among them."""
    if not len(values) or int(values.max()) - int(values.min()) > _NEAR:
        found, places = np.unique(values, return_inverse=True)
        return found, places
    low = values.min()
    there = np.zeros(int(values.max() - low) + 1, "?")
    there[values - low] = True
    return np.flatnonzero(there) + low, (np.cumsum(there) - 1)[values - low]


def combined(columns: Sequence[NDArray[Any]], spans: Sequence[int]) -> NDArray[Any]:
    """Return one number for each combination of values below ``spans``, in their order."""
    found, span = columns[0], spans[0]
    for column, width in zip(columns[1:], spans[1:], strict=True):
        if span * width >= 1 << 62:
            kept, found = distinct(found)
            span = len(kept)
        found, span = found * width + column, span * width
    return found


def decoded(rows: pa.Table) -> pa.Table:
    """Return rows without dictionaries, in columns that may be null."""
    kinds = [
        pa.field(one.name, one.type.value_type if pa.types.is_dictionary(one.type) else one.type) for one in rows.schema
    ]
    return rows.cast(pa.schema(kinds))
