"""Errors that a client gets."""

from __future__ import annotations

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
