"""The types of a method's signature, also of names that its module imports for type checking only."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME: Final = re.compile(r"[A-Za-z_]\w*")


def signature_types(method: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the parameters and of the return value by name."""
    used = {name for hint in inspect.get_annotations(method).values() for name in _NAME.findall(str(hint))}
    imports = _type_checking_imports(method.__module__)
    names = {
        name: getattr(importlib.import_module(imports[name][0]), imports[name][1]) for name in used & imports.keys()
    }
    return get_type_hints(method, localns=names, include_extras=True)


@cache
def _type_checking_imports(module: str) -> dict[str, tuple[str, str]]:
    """Return what a module imports under ``if TYPE_CHECKING``: by its name there, the module and its name in that."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for one in node.body:
                if isinstance(one, ast.ImportFrom) and one.module is not None:
                    found.update({alias.asname or alias.name: (one.module, alias.name) for alias in one.names})
    return found
