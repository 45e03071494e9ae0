"""A harness to be checked."""

from tests.contract.gates.conftest import harness, open_harness

__all__ = ["harness", "open_harness"]
