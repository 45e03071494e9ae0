"""What is kept of the reason of a nack where messages are encrypted: it stands in plain in the store and, for good, in the journal.

Workers give an exception's name and text, and the text often quotes what it failed at: a piece of the body.
"""

from __future__ import annotations

import re
from typing import Final

from tenantq.domain import limits
from tenantq.domain.validation import check_field

WITHHELD: Final = "withheld"
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}(?=:|\Z)")


def label_of(reason: str) -> str:
    """Return a reason of one word as it is; of a longer one the word before its first colon, and that the rest is withheld."""
    if type(reason) is not str or not reason:
        return reason
    check_field("reason", reason, limits.Reason)
    label = _LABEL.match(reason)
    if label is None:
        return WITHHELD
    return reason if label[0] == reason else f"{label[0]}: {WITHHELD}"
