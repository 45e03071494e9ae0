"""The jump hash: the published function, even, and moving only what must move."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.errors import Invalid
from tenantq.jump_hash import jump_hash, queue_key

KEYS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("key", "buckets", "bucket"),
    [
        (256, 1_024, 520), (42, 57, 43), (0xDEAD10CC, 1, 0), (0xDEAD10CC, 666, 361),
        (10_863_919_174_838_991, 11, 6), (2_016_238_256_797_177_309, 11, 3), (1_673_758_223_894_951_030, 11, 5),
    ],
)  # fmt: skip
def test_it_is_the_published_function(key: int, buckets: int, bucket: int) -> None:
    """Values that other implementations give."""
    assert jump_hash(key, buckets) == bucket


@given(KEYS, st.integers(1, 5_000))
def test_one_more_bucket_keeps_a_key_or_gives_it_to_the_new_one(key: int, buckets: int) -> None:
    """Nothing moves between buckets that were there before."""
    before, after = jump_hash(key, buckets), jump_hash(key, buckets + 1)
    assert 0 <= before < buckets
    assert after in {before, buckets}


@pytest.mark.parametrize("buckets", [1, 2, 7, 10, 100])
def test_queues_are_spread_evenly_and_about_one_in_n_plus_one_moves(buckets: int) -> None:
    """Also for ids as they are given out, one after the other."""
    keys = [queue_key(tenant, queue) for tenant in range(1, 5_001) for queue in (1, 2, 3)]
    homes = [jump_hash(key, buckets) for key in keys]
    counts = Counter(homes)
    mean = len(keys) / buckets
    assert len(counts) == buckets
    assert sum((count - mean) ** 2 / mean for count in counts.values()) / max(buckets - 1, 1) < 1.5
    moved = sum(jump_hash(key, buckets + 1) != home for key, home in zip(keys, homes, strict=True))
    assert moved / len(keys) == pytest.approx(1 / (buckets + 1), rel=0.1)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_every_queue_has_a_key_of_its_own(tenant_id: int, queue_id: int) -> None:
    """Both ids can be read from it."""
    assert divmod(queue_key(tenant_id, queue_id), 2**32) == (tenant_id, queue_id)


def test_what_cannot_be_placed_is_refused() -> None:
    """No bucket, a key that is too long, an id that is too long."""
    for key, buckets in ((1, 0), (2**64, 1), (-1, 1)):
        with pytest.raises(Invalid):
            jump_hash(key, buckets)
    with pytest.raises(Invalid):
        queue_key(2**32, 0)
