"""The shape of the code base: small classes, shallow inheritance, one meaning per name, standard module names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parents[2]
SOURCE = PROJECT / "src"

PUBLIC_METHODS_MAX = 25
BASE_CLASSES_MAX = 2
CAMEL_CASE = re.compile("_?[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")

OLD_VOCABULARY = re.compile(
    "access_book|adding|answering|at_work|core|counted|customers|deal|desk|door|elsewhere|entered|fellows|finding|"
    "fleet_polling|foreign_route|gatekeeper|greeting|heart|intake|known_heads|looking|mend|moment|moving|new_tenants|"
    "pace|passed_reply|passing|pauses|places|polling|pulse|readable|room|safekeeping|sealed|sealing|seat|"
    "settling|shard_orders|shift|steady|strays|take_in|timeline|traces|visit|way_in|ways|whole"
)

ORDINARY_NAMES = {"counted", "finding", "moving", "places", "settling", "whole"}
"""Say what a function returns, though no module is named so."""


class ClassFacts(NamedTuple):
    """What these tests need to know about a class."""

    file: str
    bases: list[str]
    public_methods: frozenset[str]


def _name_of(base: ast.expr) -> str:
    if isinstance(base, ast.Subscript):
        base = base.value
    return base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")


def _classes() -> dict[str, list[ClassFacts]]:
    found: dict[str, list[ClassFacts]] = defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
                public = frozenset(method.name for method in methods if not method.name.startswith("_"))
                facts = ClassFacts(str(file.relative_to(SOURCE)), [_name_of(base) for base in node.bases], public)
                found[node.name].append(facts)
    return found


def _aliases() -> Iterator[tuple[str, str]]:
    """Yield the name and file of each type alias of a module: a name in CamelCase with a value. Type variables are exempt."""
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text())
        for node in (*tree.body, *(part for one in tree.body if isinstance(one, ast.If) for part in one.body)):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                (target,) = node.targets if isinstance(node, ast.Assign) else (node.target,)
                is_variable = isinstance(node.value, ast.Call) and _name_of(node.value.func) in {"TypeVar", "ParamSpec"}
                if isinstance(target, ast.Name) and CAMEL_CASE.fullmatch(target.id) and not is_variable:
                    yield target.id, str(file.relative_to(SOURCE))


CLASSES = _classes()


def _own_bases(name: str) -> int:
    """Return the length of the longest chain of our own base classes."""
    return max(
        (1 + _own_bases(base) for facts in CLASSES[name] for base in facts.bases if base in CLASSES and base != name),
        default=0,
    )


def _public_methods(name: str) -> frozenset[str]:
    """Return the names of the public methods of a class, also those of our own base classes."""
    return frozenset().union(
        *(facts.public_methods for facts in CLASSES[name]),
        *(_public_methods(base) for facts in CLASSES[name] for base in facts.bases if base in CLASSES and base != name),
    )


def _is_error(name: str) -> bool:
    return name == "TenantqError" or any(
        _is_error(base) for facts in CLASSES.get(name, ()) for base in facts.bases if base != name
    )


def test_the_scan_finds_the_code_base() -> None:
    """Several hundred classes are checked, not an empty directory."""
    assert len(CLASSES) > 300


def test_no_class_has_more_public_methods_than_a_reader_can_hold() -> None:
    """A class with more than 25 public methods, its own and inherited ones, is several classes; errors excepted."""
    wide = {
        f"{CLASSES[name][0].file}: {name}": count
        for name in CLASSES
        if not _is_error(name) and (count := len(_public_methods(name))) > PUBLIC_METHODS_MAX
    }
    assert wide == {}


def test_inheritance_is_shallow() -> None:
    """No class has a chain of more than two of our own base classes; errors form their own tree."""
    deep = {
        f"{CLASSES[name][0].file}: {name}": _own_bases(name)
        for name in CLASSES
        if not _is_error(name) and _own_bases(name) > BASE_CLASSES_MAX
    }
    assert deep == {}


def test_a_type_name_means_one_thing() -> None:
    """Two classes or type aliases never share a name. A leading underscore makes no difference."""
    files: dict[str, list[str]] = defaultdict(list)
    for name, found in CLASSES.items():
        files[name.lstrip("_")] += [facts.file for facts in found]
    for name, file in _aliases():
        files[name.lstrip("_")].append(file)
    assert {name: sorted(where) for name, where in files.items() if len(where) > 1} == {}


def test_modules_classes_and_functions_use_standard_terms() -> None:
    """None of them returns to a name that only this project would understand, in tests and benchmarks neither."""
    old = []
    for path in (path for root in ("src", "tests", "bench") for path in (PROJECT / root).rglob("*")):
        if path.suffix == ".py" or path.is_dir():
            old += [str(path)] * (OLD_VOCABULARY.fullmatch(path.stem.removeprefix("test_")) is not None)
        if path.suffix == ".py":
            names = {_snake_case(name) for name in _defined_names(path)} - ORDINARY_NAMES
            old += [f"{path}: {name}" for name in names if OLD_VOCABULARY.fullmatch(name)]
    assert old == []


def _defined_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def _snake_case(name: str) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("_")


def test_only_a_few_modules_are_outside_packages() -> None:
    """Errors, settings and the test support for users are single modules at the top."""
    top = {path.stem for path in (SOURCE / "tenantq").glob("*.py")}
    assert top == {"__init__", "__main__", "errors", "settings", "testing"}
