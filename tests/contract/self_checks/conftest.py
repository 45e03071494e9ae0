"""A harness for self-checks."""

from tests.contract.gates.conftest import harness, open_harness

__all__ = ["harness", "open_harness"]
