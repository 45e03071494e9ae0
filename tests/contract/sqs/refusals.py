"""What a client is refused with."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


def refusal(call: Any, **parameters: Any) -> tuple[str, str]:
    """Return the code and the message that a call is refused with."""
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def code(call: Any, **parameters: Any) -> str:
    """Return the code that a call is refused with."""
    return refusal(call, **parameters)[0]
