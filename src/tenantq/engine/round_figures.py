"""Figures of the rounds of a shard since it was opened."""

from tenantq.runtime.histogram import FIRST_BITS, Histogram


class RoundFigures:
    """How many rounds ran, with how many operations, and how long they took."""

    __slots__ = ("operations", "rounds", "sizes", "syncs_took", "took", "writes_took")

    def __init__(self, syncs_took: Histogram) -> None:
        self.rounds = 0
        self.operations = 0  # run in them
        self.sizes = Histogram()  # operations, as units of the first bin
        self.took = Histogram()  # from the first operation to the write
        self.writes_took = Histogram()  # of their batches
        self.syncs_took = syncs_took

    def count(self, operations: int, took_us: int) -> None:
        """Count a round that was written."""
        self.operations += operations
        self.sizes.count(operations << FIRST_BITS)
        self.took.count(took_us)
