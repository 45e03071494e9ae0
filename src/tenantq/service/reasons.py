"""Reasons of nacks of encrypted tenants, shortened: they are stored in plain text in the store and the journal.

Workers send an exception's name and text, and the text often quotes the body.
"""

from __future__ import annotations

import re
from typing import Final

from tenantq.domain import limits
from tenantq.domain.validation import check_field

WITHHELD: Final = "withheld"
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}(?=:|\Z)")


def label_of(reason: str) -> str:
    """Return a reason of one word unchanged, or the word before the first colon and a note that the rest is withheld."""
    if type(reason) is not str or not reason:
        return reason
    check_field("reason", reason, limits.Reason)
    label = _LABEL.match(reason)
    if label is None:
        return WITHHELD
    return reason if label[0] == reason else f"{label[0]}: {WITHHELD}"
