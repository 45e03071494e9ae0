"""The pipeline knows every op that the server journals: one that it did not know would be missing from the bill."""

from __future__ import annotations

from tenantq.access import ACTIONS
from tenantq.gates.refusals import ANY
from tenantq.pipeline.schemas import KNOWN_OPS
from tests.unit.test_documented import journal_ops


def test_every_op_of_the_journal_is_known_and_no_other() -> None:
    """What the engine writes, what the gates may refuse, and the few that stand for themselves."""
    by_hand = {"cancel_redrive", "topology", "unexplained", ANY}
    assert journal_ops() | set(ACTIONS) | by_hand == KNOWN_OPS
