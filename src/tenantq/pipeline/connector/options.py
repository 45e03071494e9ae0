"""The options of ``format("tenantq")``: read once, checked by name, type and range. A token never shows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from tenantq.client import Client, Retries, Tls
from tenantq.domain.names import check_queue_name, check_tenant_name
from tenantq.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Mapping

_T = TypeVar("_T", bound=msgspec.Struct)

TOKEN_VARIABLE: Final = "TENANTQ_TOKEN"  # noqa: S105  # the variable's name
_OF_SPARK: Final = frozenset({"checkpointlocation"})
"""Options that Spark itself puts beside the user's."""


class _Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Options by their names in Spark, where case does not count."""


class JournalOptions(_Options, frozen=True, kw_only=True):
    """How a journal is read."""

    journal: str  # its directory or URL
    verify: Literal["none", "hash", "full"] = "none"  # against the manifest's hash; or the chain and every row, too
    public_key: str | None = None  # a PEM file at the driver: manifests must be signed with it
    partition_bytes: int = 64 << 20  # segments are read together up to this many bytes a task
    pushdown: bool = False  # apply filters here; for frames that are used for one query, see docs/connector.md


class StreamOptions(JournalOptions, frozen=True, kw_only=True):
    """How a journal is followed."""

    starting_offsets: str = "earliest"  # or "latest", or an offset as JSON; counts for a new checkpoint only
    max_rows_per_batch: int | None = None
    max_segments_per_batch: int | None = None
    max_bytes_per_batch: int | None = None
    on_gap: Literal["fail", "wait", "skip"] = "fail"  # what to do where records are missing between segments


class ServerOptions(_Options, frozen=True, kw_only=True):
    """How a server is reached."""

    url: str
    token: str | None = None  # none: the variable TENANTQ_TOKEN of the driver and of each executor
    ca_file: str | None = None  # PEM, on every machine: trust these authorities instead of the system's
    timeout_ms: int = 30_000

    def __repr__(self) -> str:
        """Show where it leads, and never the token."""
        return f"<{type(self).__name__} for {self.url}>"

    def client(self, retries: Retries) -> Client:
        """Return a client of this process."""
        token = self.token or os.environ.get(TOKEN_VARIABLE)
        if not token:
            raise Invalid(
                f'token: there is none; give .option("token", …), or {TOKEN_VARIABLE} to the driver and the executors'
            )
        return Client(self.url, token, timeout_ms=self.timeout_ms, retries=retries, tls=Tls(ca_file=self.ca_file))

    def check(self) -> None:
        """Raise Invalid where no client can be made of this, before a task tries to."""
        with self.client(Retries(count=0)):
            pass


class SnapshotOptions(ServerOptions, frozen=True, kw_only=True):
    """How a queue's content is read."""

    queue: str
    tenant: str | None = None  # none: the token's own
    snapshot: str | None = None  # one that was opened before; none: a new one for every run of the query
    keep_ms: int = 120_000  # how long the server keeps a snapshot that nobody reads
    partition_messages: int = 20_000  # a task reads about so many

    def __repr__(self) -> str:
        """Show what is read, and never the token."""
        return f"<{type(self).__name__} of {self.queue} at {self.url}>"


class WriteOptions(ServerOptions, frozen=True, kw_only=True):
    """How rows become messages."""

    queue: str | None = None  # for rows without a column ``queue``, or with none in it
    tenant: str | None = None  # likewise; none: the token's own
    write_id: str | None = None  # names this write: the same rows again under it are not added again
    identical_rows: Literal["keep", "once"] = "keep"  # rows alike in everything: a message each, or one
    batch_size: int = 500  # messages of one request
    max_wait_ms: int = 300_000  # how long a task waits for a server that is full, limits, or is away

    def __repr__(self) -> str:
        """Show where it leads, and never the token."""
        return f"<{type(self).__name__} for {self.url}>"


_RANGES: Final[dict[str, tuple[int, int]]] = {
    "partition_bytes": (1, 1 << 40),
    "max_rows_per_batch": (1, 1 << 50),
    "max_segments_per_batch": (1, 1 << 50),
    "max_bytes_per_batch": (1, 1 << 50),
    "timeout_ms": (1, 3_600_000),
    "keep_ms": (1_000, 3_600_000),
    "partition_messages": (1, 1_000_000),
    "batch_size": (1, 1_000),
    "max_wait_ms": (0, 86_400_000),
}
_WRITE_ID_CHARS_MAX: Final = 200


def read_options(kind: type[_T], given: Mapping[str, str]) -> _T:
    """Return the options, or raise Invalid naming the one that is wrong, and what there is."""
    names = {field.encode_name.lower(): field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name.lower() in _OF_SPARK and name.lower() not in names:
            continue
        if name.lower() not in names:
            known = ", ".join(field.encode_name for field in names.values())
            raise Invalid(f"option {name[:80]}: there is no such option here; there are {known}")
        values[names[name.lower()].encode_name] = text
    for field in names.values():
        if field.required and not values.get(field.encode_name):
            raise Invalid(f"option {field.encode_name}: is missing; give .option({field.encode_name!r}, …)")
        if field.name == "token" and values.get("token") == "":
            raise Invalid("option token: is empty")
    try:
        options = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"option {_named(str(error))}") from None  # the cause would show values
    for name, (low, high) in _RANGES.items():
        value = getattr(options, name, None)
        if value is not None and not low <= value <= high:
            shown = next(field.encode_name for field in names.values() if field.name == name)
            raise Invalid(f"option {shown}: {value} is not from {low} to {high}")
    _check_names(options)
    return options


def _check_names(options: msgspec.Struct) -> None:
    queue, tenant = getattr(options, "queue", None), getattr(options, "tenant", None)
    write_id = getattr(options, "write_id", None)
    if queue is not None:
        check_queue_name(queue)
    if tenant is not None:
        check_tenant_name(tenant)
    if write_id is not None and not 1 <= len(write_id) <= _WRITE_ID_CHARS_MAX:
        raise Invalid(f"option writeId: must be 1 to {_WRITE_ID_CHARS_MAX} characters")


def _named(text: str) -> str:
    """Turn msgspec's text (what - at `$.name`) into ours (name: what)."""
    what, _, place = text.partition(" - at `$.")
    return f"{place.rstrip('`')}: {what}" if place else what
