"""Texts of the product: string literals, help and default error messages. Run it to list what breaks the rules.

python -m tests.docs.product_texts [PACKAGE]
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from typing import TYPE_CHECKING

from tests.docs.prose import PROJECT, complaints

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = PROJECT / "src" / "tenantq"
_WORDS_MIN = 4  # shorter texts are names, formats and keys


def product_texts() -> Iterator[tuple[str, str]]:
    """Yield every text that a user may read, with its file and line."""
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text())
        docstrings = {id(doc) for node in ast.walk(tree) if (doc := _docstring(node)) is not None}
        docstrings |= {
            id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
        }  # of constants and fields
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        place = str(path.relative_to(SOURCES))
        for node in ast.walk(tree):
            text = ""
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "value" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | inner:
                text = node.value
            elif _is_read_by_users(node) and (doc := _docstring(node)) is not None:
                text = inspect.cleandoc(str(doc.value))
            for paragraph in re.split(r"\n\s*\n|\n(?=  )", text):
                flat = " ".join(paragraph.split())
                if len(flat.split()) >= _WORDS_MIN and re.search(r"[a-z]{3}", flat):
                    yield f"{place}:{getattr(node, 'lineno', 0)}", re.sub(r"'[^']*'|`[^`]*`", "code", flat)


def _docstring(node: ast.AST) -> ast.Constant | None:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            return first.value
    return None


def _is_read_by_users(node: ast.AST) -> bool:
    """Return whether a docstring is help text or an error's default text."""
    if isinstance(node, ast.ClassDef):
        return any(isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "code" for one in node.body)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return any(re.search(r"\b(command|group)\(", ast.unparse(one)) for one in node.decorator_list)
    return False


def product_complaints(package: str = "") -> list[str]:
    """Return the violations of docs/style.toml in these texts."""
    return [
        f"{place}: {complaint}"
        for place, text in product_texts()
        if place.startswith(package)
        for complaint in complaints(text)
    ]


if __name__ == "__main__":
    print(*product_complaints(*sys.argv[1:]), sep="\n")
