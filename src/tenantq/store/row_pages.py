"""Scans in pages, which bounds the memory of long ranges and large values."""

from collections.abc import Iterator
from typing import Final

from tenantq.store.interface import Family, StoreReader
from tenantq.store.keys import after

KEYS_PER_PAGE: Final = 1_000
VALUES_PER_PAGE: Final = 64
"""Small, because a value can be a body of one mebibyte."""


def pages_of_keys(
    store: StoreReader, family: Family, lower: bytes, upper: bytes, size: int = KEYS_PER_PAGE
) -> Iterator[list[bytes]]:
    """Iterate over the keys in [lower, upper)."""
    while page := store.scan(family, lower, upper, size):
        yield page
        lower = page[-1] + b"\0"


def pages_of_items(
    store: StoreReader, family: Family, lower: bytes, upper: bytes, size: int = VALUES_PER_PAGE
) -> Iterator[list[tuple[bytes, bytes]]]:
    """Iterate over the keys in [lower, upper) with their values."""
    while page := store.scan_items(family, lower, upper, size):
        yield page
        lower = page[-1][0] + b"\0"


def rows_under(
    store: StoreReader, family: Family, prefix: bytes, size: int = KEYS_PER_PAGE
) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the rows whose keys start with ``prefix``, in order."""
    for page in pages_of_items(store, family, prefix, after(prefix), size):
        yield from page
