"""Errors form one tree, drawn at the top of its module, and their texts are their docstrings."""

import inspect
import re

import pytest

from tenantq import errors
from tenantq.errors import TenantqError


def tree(kind: type[TenantqError]) -> list[type[TenantqError]]:
    """Return a class and all of its subclasses."""
    return [kind, *(below for child in kind.__subclasses__() for below in tree(child))]


HERE = [kind for kind in tree(TenantqError) if kind.__module__ == "tenantq.errors"]


@pytest.mark.parametrize("kind", HERE)
def test_the_default_text_of_an_error_is_its_docstring(kind: type[TenantqError]) -> None:
    """So text and docs cannot drift apart."""
    error = kind()
    assert error.message == inspect.cleandoc(kind.__doc__ or "")
    assert str(error) == error.message
    assert error.message


@pytest.mark.parametrize("kind", HERE)
def test_an_error_carries_tenant_queue_and_id(kind: type[TenantqError]) -> None:
    """Or none of them."""
    error = kind("text", tenant="acme", queue="work", id="7")
    assert (error.message, error.tenant, error.queue, error.id) == ("text", "acme", "work", "7")
    assert (kind().tenant, kind().queue, kind().id) == (None, None, None)


def test_the_tree_in_the_module_docstring_is_complete() -> None:
    """Parsed from the drawing: names, parents and codes."""
    parents: dict[str, str] = {}
    codes: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([ │]*)(?:[├└]── )?([A-Z]\w+)(?: +([a-z_]+)  )?", line)
        if found is None or not (line.startswith("    ") or "──" in line):
            continue
        depth = line.index(found[2])
        while above and above[-1][0] >= depth:
            above.pop()
        parents[found[2]] = above[-1][1] if above else "Exception"
        codes[found[2]] = found[3] or ""
        above.append((depth, found[2]))
    assert parents == {kind.__name__: kind.__bases__[0].__name__ for kind in HERE}
    for kind in HERE:
        if codes[kind.__name__]:
            assert kind.code == codes[kind.__name__]


@pytest.mark.parametrize("kind", HERE)
def test_every_error_has_a_code_and_an_http_status(kind: type[TenantqError]) -> None:
    """4xx for the caller's fault, 5xx for the server's."""
    assert re.fullmatch(r"[a-z_]+", kind.code)
    assert 400 <= kind.status < 600
