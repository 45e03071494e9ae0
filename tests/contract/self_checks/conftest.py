"""A house to be checked."""

from tests.contract.gates.conftest import house, open_house

__all__ = ["house", "open_house"]
