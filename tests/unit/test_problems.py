"""Error replies to callers."""

from __future__ import annotations

import msgspec
import pytest

from tenantq.errors import DiskFull, Forbidden, StoreDamaged, StoreFailed
from tenantq.service.problems import item_error, problem_of
from tenantq.wire.json_bytes import SHORT_BYTES, bytes_of, text_or_base64


@pytest.mark.parametrize("kind", [StoreFailed, StoreDamaged, DiskFull])
def test_store_errors_are_hidden_from_callers(kind: type[StoreFailed]) -> None:
    """Their texts name files and devices. The reply says what to do."""
    error = kind("/srv/data/db/000008.log: Too many open files")
    for told in (problem_of(error, "id").detail, item_error(error).detail):
        assert "/srv" not in told
        assert told.startswith(str(kind().args[0]))
        assert "log" in told


def test_an_invalid_name_is_not_echoed() -> None:
    """A megabyte is not sent back, and the platform has no name."""
    assert problem_of(Forbidden(tenant="x" * 1_000_000), "id").tenant is None
    assert problem_of(Forbidden(tenant=""), "id").tenant is None
    assert problem_of(Forbidden(tenant="acme"), "id").tenant == "acme"


@pytest.mark.parametrize(
    ("body", "is_text"),
    [
        (b"\0" * SHORT_BYTES, True),
        (b"\0" * (SHORT_BYTES + 1), False),
        (b"\n\t\r" * SHORT_BYTES, True),
        (b"x" * 7_000 + b"\x01" * 1_000, True),
        (b"x" * 6_000 + b"\x01" * 1_000, False),
        (b"\xff", False),
        ("ü".encode() * 2_000, True),
    ],
)
def test_bodies_never_grow_much_in_json(body: bytes, is_text: bool) -> None:  # noqa: FBT001  # as given above
    """Bodies that JSON would expand sixfold are sent as base64. Both forms round-trip."""
    text, base64 = text_or_base64(body)
    assert (text is not None, base64 is not None) == (is_text, not is_text)
    assert bytes_of(text, base64, "body") == body
    if len(body) > SHORT_BYTES:
        assert len(msgspec.json.encode(text or base64)) <= 2 * len(body) + 2
