"""The shape of the code base: small classes, shallow inheritance, one meaning per name, standard module names."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parents[2]
SOURCE = PROJECT / "src"

PUBLIC_METHODS_MAX = 25
CLIENT_METHODS_MAX = {"AsyncQueue": 28, "AsyncTenant": 33, "Queue": 29, "Tenant": 34}
"""More methods than that, because users of the client know them by these names. Each is one call of the HTTP API, and
those about grants and data keys are methods of a part."""
BASE_CLASSES_MAX = 2
CAMEL_CASE = re.compile("_?[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")

OLD_VOCABULARY = re.compile(
    "access_book|acts|adding|answering|at_work|core|counted|customers|deal|desk|directory_building|door|"
    "elsewhere|entered|fellows|finding|fleet_polling|foreign_route|front|gatekeeper|gathering|greeting|heart|"
    "intake|kinds|known_heads|looking|mend|metrics_gathering|moment|moving|new_tenants|pace|passed_reply|"
    "passing|pauses|places|polling|pulse|readable|reading|receiving|rendering|room|safekeeping|sealed|sealing|"
    "seat|sending|settling|shard_orders|shift|steady|strays|take_in|timeline|traces|visit|way_in|ways|whole"
)

ORDINARY_NAMES = {
    "counted", "finding", "front", "kinds", "moving", "places", "reading", "sending", "settling", "whole",
}  # fmt: skip
"""Say what a function returns, though no module is named so."""


FILES = {file: ast.parse(file.read_text()) for file in sorted(SOURCE.rglob("*.py"))}


class ClassFacts(NamedTuple):
    """What these tests need to know about a class."""

    file: str
    bases: list[str]
    public_methods: frozenset[str]


def _name_of(base: ast.expr) -> str:
    if isinstance(base, ast.Subscript):
        base = base.value
    return base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(_name_of(one) in {"property", "cached_property", "setter"} for one in function.decorator_list)


def _functions() -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, bool]]:
    """Yield all functions, and whether they are methods."""
    for file in FILES.values():
        methods = {part for node in ast.walk(file) if isinstance(node, ast.ClassDef) for part in node.body}
        for node in ast.walk(file):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node, node in methods


FUNCTION_MAKERS = {"partial"} | {
    function.name
    for function, is_method in _functions()
    if not is_method and function.returns is not None and ast.unparse(function.returns).startswith("Callable[")
}
"""Functions that return a function, such as ``blocking`` of the client."""

METHODS = {function.name for function, is_method in _functions() if is_method and not _is_property(function)}


def _is_made(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and _name_of(value.func) in FUNCTION_MAKERS


def _is_method_of_part(value: ast.expr) -> bool:
    """Return whether this is ``self.part.method``."""
    return (
        isinstance(value, ast.Attribute)
        and value.attr in METHODS
        and isinstance(value.value, ast.Attribute)
        and _name_of(value.value.value) == "self"
    )


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a statement assigns to, each with its value."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=True)
            else:
                yield target, node.value


def _assigned_methods(node: ast.ClassDef) -> Iterator[str]:
    """Yield the names of methods that are assigned in the body of a class, or by its __init__.

    A lambda in __init__ is no method: it is the default of a callback.
    """
    for part in node.body:
        for target, value in _assigned(part):
            if isinstance(value, ast.Lambda) or _is_made(value):
                yield _name_of(target)
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            for target, value in chain.from_iterable(map(_assigned, ast.walk(part))):
                if isinstance(target, ast.Attribute) and (_is_made(value) or _is_method_of_part(value)):
                    yield target.attr


def _imported_from_elsewhere(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a file imports from other packages. They may be the same as names of our classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(("tenantq", "pyspark_tenantq")):
            yield from (alias.asname or alias.name for alias in node.names)


def _classes() -> dict[str, list[ClassFacts]]:
    found: dict[str, list[ClassFacts]] = defaultdict(list)
    for file, tree in FILES.items():
        foreign = set(_imported_from_elsewhere(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
                public = frozenset(name for name in (*methods, *_assigned_methods(node)) if not name.startswith("_"))
                bases = [name for base in node.bases if (name := _name_of(base)) not in foreign]
                facts = ClassFacts(str(file.relative_to(SOURCE)), bases, public)
                found[node.name].append(facts)
    return found


def _aliases() -> Iterator[tuple[str, str]]:
    """Yield the name and file of each type alias of a module: a name in CamelCase with a value. Type variables are exempt."""
    for file, tree in FILES.items():
        conditional = (part for one in tree.body if isinstance(one, ast.If) for part in one.body)
        for target, value in chain.from_iterable(map(_assigned, (*tree.body, *conditional))):
            is_variable = isinstance(value, ast.Call) and _name_of(value.func) in {"TypeVar", "ParamSpec"}
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
    """A class with more than 25 public methods, its own, assigned and inherited ones, is several classes; errors excepted."""
    wide = {
        f"{CLASSES[name][0].file}: {name}": count
        for name in CLASSES
        if not _is_error(name)
        and (count := len(_public_methods(name))) > CLIENT_METHODS_MAX.get(name, PUBLIC_METHODS_MAX)
    }
    assert wide == {}


def test_assigned_methods_count_like_others() -> None:
    """Methods that the client assigns in the body of a class, or in its __init__, are public methods of it."""
    assert {"add", "poll", "open_snapshot"} <= _public_methods("Queue") & _public_methods("AsyncQueue")
    assert {"grant", "rotate_keys"} <= _public_methods("Tenant") & _public_methods("AsyncTenant")


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
    for path in (path for root in ("src", "tests", "bench") for path in (PROJECT / root).rglob("*.py")):
        places = (path.stem.removeprefix("test_"), *path.relative_to(PROJECT).parts[:-1])
        names = {_snake_case(name) for name in _defined_names(path)} - ORDINARY_NAMES
        old += [f"{path}: {name}" for name in (*places, *names) if OLD_VOCABULARY.fullmatch(name)]
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
