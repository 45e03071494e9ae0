"""Modules form no cycles. Imports for types only and imports inside functions count as well."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def _modules() -> dict[str, Path]:
    """Return the file of each module and package by its dotted name."""
    return {
        ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): file
        for file in sorted((SOURCE / "tenantq").rglob("*.py"))
    }


def _imported(file: Path) -> Iterator[str]:
    """Yield the names that a file imports, with those imported from modules in dotted form."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _import_graph() -> dict[str, set[str]]:
    """Return the modules of tenantq that each module imports."""
    modules = _modules()

    def module_of(name: str) -> str:
        return name if name in modules else name.rpartition(".")[0]

    return {
        module: {found for name in _imported(file) if (found := module_of(name)) in modules} - {module}
        for module, file in modules.items()
    }


def _cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of one cycle, each importing the next, or an empty list."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[::-1]
    return []


GRAPH = _import_graph()


def test_the_scan_finds_imports_of_all_kinds() -> None:
    """Imports at the top, for types only, and inside functions are edges of the graph."""
    assert len(GRAPH) > 500
    assert "tenantq.store.interface" in GRAPH["tenantq.store.rocks"]
    assert "tenantq.journal.bucket_target" in GRAPH["tenantq.journal.export_target"]  # inside a function


def test_no_modules_import_each_other() -> None:
    """No module imports itself through other modules."""
    assert _cycle(GRAPH) == []


def test_a_cycle_is_found() -> None:
    """A cycle of three modules is reported in the order of its imports."""
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert sorted(_cycle(graph)[1:]) == ["a", "b", "c"]
