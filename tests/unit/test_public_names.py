"""The names that ``from tenantq import …`` offers."""

from __future__ import annotations

import inspect

import tenantq
from tenantq import errors


def test_public_names_are_sorted_and_importable() -> None:
    """Every error is among them."""
    assert tenantq.__all__ == sorted(tenantq.__all__)
    for name in tenantq.__all__:
        assert getattr(tenantq, name).__name__ == name
    raised = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert raised <= set(tenantq.__all__)
