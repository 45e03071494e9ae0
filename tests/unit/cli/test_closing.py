"""How a server process ends whose store has failed."""

from __future__ import annotations

from typing import Any

import pytest

from tenantq.cli.commands.serve import closed
from tenantq.errors import StoreFailed, Unavailable


class Failing:
    """A server that cannot be closed in good order."""

    def __init__(self, failure: StoreFailed | None, raised: Exception | None) -> None:
        self.failure = failure
        self._raised = raised

    async def close(self, _: int | None) -> None:
        """Fail."""
        if self._raised is not None:
            raise self._raised


@pytest.mark.parametrize("raised", [None, StoreFailed("too many open files"), OSError(24, "Too many open files")])
async def test_a_store_that_failed_is_exit_code_1_also_where_closing_fails(
    raised: Exception | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, which names the first failure."""
    server: Any = Failing(StoreFailed("a disk is broken"), raised)
    assert await closed(server, 0) == 1
    assert capsys.readouterr().err == (
        "tenantq: the store failed and the server stopped: a disk is broken [unavailable]\n"
    )


async def test_whatever_else_fails_is_raised() -> None:
    """Nothing is taken for the store's failure that is not."""
    server: Any = Failing(None, Unavailable("the target of the export is away"))
    with pytest.raises(Unavailable):
        await closed(server)
