"""Text that XML can represent. Amazon SQS accepts no other, in either protocol."""

from __future__ import annotations

import re
from typing import Final

ILLEGAL: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
ILLEGAL_TOLD: Final = (
    "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | "
    "#x10000 to #x10FFFF."
)
_SPECIAL: Final = re.compile('[&<>"\r]')
_ESCAPES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#13;"}


def is_legal(text: str) -> bool:
    """Return whether XML can represent ``text``."""
    return ILLEGAL.search(text) is None


def escape(text: str) -> str:
    """Return ``text`` escaped as element content. Illegal characters are replaced."""
    if ILLEGAL.search(text) is not None:
        text = ILLEGAL.sub("\ufffd", text)
    return _SPECIAL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return _ESCAPES[found[0]]
