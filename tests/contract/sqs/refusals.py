"""Errors that a client gets."""

from __future__ import annotations

import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


def refusal(call: Any, **parameters: Any) -> tuple[str, str]:
    """Return the code and message of a refused call."""
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def code(call: Any, **parameters: Any) -> str:
    """Return the code of a refused call."""
    return refusal(call, **parameters)[0]


def refused_within_a_second(client: Any, revoked_at: float) -> None:
    """Call until the client's key is refused. No call that began a second after the revocation may succeed."""
    while True:
        began = time.monotonic()
        try:
            client.list_queues()
        except ClientError:
            break
        assert began - revoked_at < 1
    assert code(client.list_queues) == "InvalidClientTokenId"
