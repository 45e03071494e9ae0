"""Text that XML can represent. Amazon SQS accepts no other, in either protocol."""

import re
from typing import Final
from xml.sax import saxutils  # writes only; nothing is parsed

ILLEGAL: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
ILLEGAL_TEXT: Final = (
    "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | "
    "#x10000 to #x10FFFF."
)
_ESCAPES: Final = {'"': "&quot;", "\r": "&#13;"}  # in addition to &, < and >


def is_legal(text: str) -> bool:
    """Return whether XML can represent ``text``."""
    return ILLEGAL.search(text) is None


def escape(text: str) -> str:
    """Return ``text`` escaped as element content. Illegal characters are replaced."""
    return saxutils.escape(ILLEGAL.sub("\ufffd", text), _ESCAPES)
