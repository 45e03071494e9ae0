"""Query parameters of pages."""

from __future__ import annotations

import msgspec

from tenantq.domain.limits import PageSize


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selects a page of a list."""

    cursor: str | None = None  # the ``cursor`` of the previous page
    limit: PageSize = 100
