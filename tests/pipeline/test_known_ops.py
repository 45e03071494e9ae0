"""The pipeline knows every op that the server journals: one that it did not know would be missing from the bill."""

from __future__ import annotations

import ast
import inspect
from functools import cache

from tenantq.domain.access import ACTIONS
from tenantq.gates.call_notes import ANY
from tenantq.pipeline.schemas import KNOWN_OPS
from tenantq.service.admission import Admission
from tenantq.service.audit_notes import AuditNotes
from tests.unit.test_documented import SOURCES, journal_ops


def _place_of_action(function: ast.AsyncFunctionDef | ast.FunctionDef) -> int | None:
    names = [argument.arg for argument in function.args.args]
    return names.index("action") - 1 if "action" in names else None  # without self


@cache
def gate_actions() -> frozenset[str]:
    """Return the actions that are named to admission, or to what passes them on to it: each may be refused, and journaled."""
    trees = [ast.parse(path.read_text()) for path in SOURCES if "tenantq/service" in path.as_posix()]
    takes_action = {
        node.name: place
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and (place := _place_of_action(node)) is not None
    }
    found: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in takes_action:
            named = [
                *node.args[takes_action[node.func.attr] :][:1],
                *(k.value for k in node.keywords if k.arg == "action"),
            ]
            texts = {part.value for one in named for part in ast.walk(one) if isinstance(part, ast.Constant)}
            found |= {text for text in texts if isinstance(text, str)}
    return frozenset(found)


def test_every_op_of_the_journal_is_known_and_no_other() -> None:
    """What the engine writes, what the gates may refuse, and the few that stand for themselves."""
    by_hand = {"cancel_redrive", "unexplained", ANY}
    assert journal_ops() | set(ACTIONS) | gate_actions() | by_hand == KNOWN_OPS


def test_every_action_that_admission_is_told_of_is_known() -> None:
    """Also those that need no permission: a login that is refused is journaled like any other call."""
    methods = {
        name
        for noun in (Admission, AuditNotes)
        for name, method in inspect.getmembers(noun, inspect.isfunction)
        if "action" in inspect.signature(method).parameters
    }
    assert {"identify", "admit", "admit_queue", "admit_platform", "admit_any", "note_refusal"} <= methods
    assert {"login", "topology", "add", "poll", "create_key", "metrics"} <= gate_actions()
    assert gate_actions() <= KNOWN_OPS
