"""Which page of a list a caller wants."""

from __future__ import annotations

import msgspec

from tenantq.domain.limits import PageSize


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which page of a list."""

    cursor: str | None = None  # the name after which the page starts; the last page's ``cursor``
    limit: PageSize = 100
