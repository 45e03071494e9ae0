"""The pipeline knows every operation that the server journals; an unknown one would be missing from the bill."""

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
    """Return the actions passed to admission, directly or through helpers: each can be refused and journaled."""
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


def test_known_ops_are_exactly_the_journaled_ones() -> None:
    """Operations of the engine, actions that can be refused, and a few special cases."""
    special = {"unexplained", ANY}
    assert journal_ops() | set(ACTIONS) | gate_actions() | special == KNOWN_OPS


def test_every_action_passed_to_admission_is_known() -> None:
    """Including those that need no permission: a refused login is journaled like any other call."""
    methods = {
        name
        for noun in (Admission, AuditNotes)
        for name, method in inspect.getmembers(noun, inspect.isfunction)
        if "action" in inspect.signature(method).parameters
    }
    assert {"identify", "admit", "admit_queue", "admit_platform", "admit_any", "note_refusal"} <= methods
    assert {"login", "topology", "add", "poll", "create_key", "metrics"} <= gate_actions()
    assert gate_actions() <= KNOWN_OPS
