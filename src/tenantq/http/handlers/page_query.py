"""Which page of a list a caller wants."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tenantq.domain.limits import PAGE_MAX


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which page of a list."""

    cursor: str | None = None  # the name after which the page starts; the last page's ``cursor``
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = 100
