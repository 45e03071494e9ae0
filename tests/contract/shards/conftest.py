"""One server of three shards for all tests here that do no harm to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.shards.sharded import Sharded, sharded

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharded]:
    """Return a running server of three shards."""
    with sharded(tmp_path_factory.mktemp("three") / "data", "--shards", 3, "--rpc", "127.0.0.1:0") as server:
        yield server
