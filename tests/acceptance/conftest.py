"""One server for each module of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.command import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.command import Served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Return a running server. The tests of a module use different queue and tenant names."""
    with serving(tmp_path_factory.mktemp("served") / "data") as served:
        yield served
