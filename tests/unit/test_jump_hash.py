"""The jump hash: the published function, evenly distributed, with minimal moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.domain.placement import jump_hash, tenant_key
from tenantq.errors import Invalid

KEYS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("key", "buckets", "bucket"),
    [
        (256, 1_024, 520), (42, 57, 43), (0xDEAD10CC, 1, 0), (0xDEAD10CC, 666, 361),
        (10_863_919_174_838_991, 11, 6), (2_016_238_256_797_177_309, 11, 3), (1_673_758_223_894_951_030, 11, 5),
    ],
)  # fmt: skip
def test_values_match_the_published_function(key: int, buckets: int, bucket: int) -> None:
    """Other implementations give the same values."""
    assert jump_hash(key, buckets) == bucket


@given(KEYS, st.integers(1, 5_000))
def test_a_new_bucket_takes_keys_and_no_other_key_moves(key: int, buckets: int) -> None:
    """Nothing moves between existing buckets."""
    before, after = jump_hash(key, buckets), jump_hash(key, buckets + 1)
    assert 0 <= before < buckets
    assert after in {before, buckets}


@pytest.mark.parametrize("buckets", [1, 2, 7, 10, 100])
def test_tenants_are_spread_evenly_and_about_one_in_n_plus_one_moves(buckets: int) -> None:
    """Also for names that differ only in a number."""
    keys = [tenant_key(f"customer-{at}") for at in range(15_000)]
    homes = [jump_hash(key, buckets) for key in keys]
    counts = Counter(homes)
    mean = len(keys) / buckets
    assert len(counts) == buckets
    freedom = buckets - 1
    assert sum((count - mean) ** 2 / mean for count in counts.values()) <= freedom + 4 * (2 * freedom) ** 0.5
    moved = sum(jump_hash(key, buckets + 1) != home for key, home in zip(keys, homes, strict=True))
    share = 1 / (buckets + 1)
    assert abs(moved - len(keys) * share) < 4 * (len(keys) * share * (1 - share)) ** 0.5


def test_the_key_of_a_tenant_is_stable() -> None:
    """Another value would move existing tenants."""
    assert [tenant_key(name) for name in ("default", "acme")] == [0x37A8EEC1CE19687D, 0x822B33AD87C148A0]


def test_invalid_input_is_refused() -> None:
    """No bucket, or a key that is too long."""
    for key, buckets in ((1, 0), (2**64, 1), (-1, 1)):
        with pytest.raises(Invalid):
            jump_hash(key, buckets)
