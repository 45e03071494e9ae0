"""A claim of a shard waits until the shard is free, and is this process's to take."""

from __future__ import annotations

import threading

import pytest

from tenantq.errors import StoreLocked
from tenantq.store.shard_lease import CLAIM_S, ReleaseSignal, ShardHeld, claim_when_free

PATIENT_MS = 20_000


class Shard:
    """Counts the claims of a shard that others own at first."""

    def __init__(self, held: int) -> None:
        self.held, self.claims = held, 0

    def claim(self) -> int:
        """Return how many claims it took. Raises ShardHeld for the first ones."""
        self.claims += 1
        if self.claims <= self.held:
            raise ShardHeld("redis://a", "another server", 3_000)
        return self.claims


def test_a_shard_is_claimed_until_it_is_free() -> None:
    """Its owner may be dead, and its release unannounced."""
    assert claim_when_free(Shard(2).claim, PATIENT_MS, ReleaseSignal()) == 3


def test_a_claim_ends_after_its_time() -> None:
    """The error names the owner."""
    with pytest.raises(ShardHeld, match="is owned by another server"):
        claim_when_free(Shard(1_000).claim, 0, ReleaseSignal())


def test_a_shard_that_is_assigned_elsewhere_is_not_claimed() -> None:
    """When it is free, it is for another server."""
    shard = Shard(1)
    with pytest.raises(ShardHeld):
        claim_when_free(shard.claim, int(5_000 * CLAIM_S), ReleaseSignal(is_assigned=lambda: not shard.claims))
    assert shard.claims == 1
    with pytest.raises(StoreLocked, match="assigned to another server"):
        claim_when_free(shard.claim, 0, ReleaseSignal(is_assigned=lambda: False))
    assert shard.claims == 1


def test_a_shard_that_was_released_to_this_server_is_claimed_in_any_case() -> None:
    """Its owner did not know yet that it is assigned elsewhere, and nobody else was told."""
    shard = Shard(1)
    released = ReleaseSignal(is_assigned=lambda: not shard.claims)
    timer = threading.Timer(2 * CLAIM_S, released.set)
    timer.start()
    assert claim_when_free(shard.claim, PATIENT_MS, released) == 2
    timer.join()


def test_claims_continue_when_the_shard_is_assigned_to_this_server_again() -> None:
    """No signal is needed then."""
    answers = iter((True, False, False, True))
    shard = Shard(1)
    assert claim_when_free(shard.claim, PATIENT_MS, ReleaseSignal(is_assigned=lambda: next(answers))) == 2
    assert not list(answers)
