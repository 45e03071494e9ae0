"""How a server process ends after its store has failed."""

from __future__ import annotations

from typing import Any

import pytest

from tenantq.cli.commands.serve import closed
from tenantq.errors import StoreFailed, Unavailable


class Failing:
    """A server that fails to close."""

    def __init__(self, failure: StoreFailed | None, raised: Exception | None) -> None:
        self.failure = failure
        self._raised = raised

    async def close(self, _: int | None) -> None:
        """Fail."""
        if self._raised is not None:
            raise self._raised


@pytest.mark.parametrize("raised", [None, StoreFailed("too many open files"), OSError(24, "Too many open files")])
async def test_a_store_failure_exits_with_1_even_if_closing_fails(
    raised: Exception | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr names the first failure."""
    server: Any = Failing(StoreFailed("a disk is broken"), raised)
    assert await closed(server, 0) == 1
    assert capsys.readouterr().err == (
        "tenantq: the store failed and the server stopped: a disk is broken [unavailable]\n"
    )


async def test_other_failures_are_raised() -> None:
    """They are not reported as a store failure."""
    server: Any = Failing(None, Unavailable("the target of the export is away"))
    with pytest.raises(Unavailable):
        await closed(server)
