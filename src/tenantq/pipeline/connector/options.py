"""The options of ``format("tenantq")``, checked by name, type and range. Representations never show a token.

Spark's names are camel case, and case-insensitive.
"""

import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from tenantq.client import Client, Retries, Tls
from tenantq.domain.names import check_queue_name, check_tenant_name
from tenantq.errors import Invalid

_T = TypeVar("_T", bound=msgspec.Struct)
_BatchMax = Annotated[int, Meta(ge=1, le=1 << 50)]

TOKEN_VARIABLE: Final = "TENANTQ_TOKEN"  # noqa: S105  # the variable's name
_OF_SPARK: Final = frozenset({"checkpointlocation"})
"""Options that Spark itself adds."""


class JournalOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How a journal is read."""

    journal: str  # its directory or URL
    verify: Literal["none", "hash", "full"] = "none"  # against the manifest's hash; or the chain and every row, too
    public_key: str | None = None  # a PEM file at the driver: manifests must be signed with it
    partition_bytes: Annotated[int, Meta(ge=1, le=1 << 40)] = (
        64 << 20
    )  # segments are read together up to this many bytes a task
    pushdown: bool = False  # for frames that are used for one query only, see docs/reference/spark-connector.md


class StreamOptions(JournalOptions, frozen=True, kw_only=True):
    """How a journal is followed."""

    starting_offsets: str = "earliest"  # or "latest", or an offset as JSON; applies to a new checkpoint only
    max_rows_per_batch: _BatchMax | None = None
    max_segments_per_batch: _BatchMax | None = None
    max_bytes_per_batch: _BatchMax | None = None
    on_gap: Literal["fail", "wait", "skip"] = "fail"  # what to do where records are missing between segments


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How a server is reached."""

    url: str
    token: str | None = None  # default: the variable TENANTQ_TOKEN of the driver and of each executor
    ca_file: str | None = None  # PEM, on every machine: trusted instead of the system's authorities
    timeout_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 30_000

    def __repr__(self) -> str:
        """Show the URL, and never the token."""
        return f"<{type(self).__name__} for {self.url}>"

    def client(self, retries: Retries) -> Client:
        """Return a client of this process."""
        token = self.token or os.environ.get(TOKEN_VARIABLE)
        if not token:
            raise Invalid(
                f'token: is missing; give .option("token", …), or {TOKEN_VARIABLE} to the driver and the executors'
            )
        return Client(self.url, token, timeout_ms=self.timeout_ms, retries=retries, tls=Tls(ca_file=self.ca_file))

    def check(self) -> None:
        """Raise Invalid if no client can be created with these options, before a task tries to."""
        with self.client(Retries(count=0)):
            pass


class SnapshotOptions(ServerOptions, frozen=True, kw_only=True):
    """How a queue's content is read."""

    queue: str
    tenant: str | None = None  # default: the token's own
    snapshot: str | None = None  # an open snapshot; default: a new one for every run of the query
    keep_ms: Annotated[int, Meta(ge=1_000, le=3_600_000)] = 120_000  # how long the server keeps an unused snapshot
    partition_messages: Annotated[int, Meta(ge=1, le=1_000_000)] = 20_000  # per task, about

    def __repr__(self) -> str:
        """Show the queue, and never the token."""
        return f"<{type(self).__name__} of {self.queue} at {self.url}>"


class WriteOptions(ServerOptions, frozen=True, kw_only=True):
    """How rows become messages."""

    queue: str | None = None  # for rows without a value in a column ``queue``
    tenant: str | None = None  # likewise; none: the token's own
    write_id: str | None = None  # repeating a write with the same id adds no row twice
    identical_rows: Literal["keep", "once"] = "keep"  # identical rows become one message each, or one in all
    batch_size: Annotated[int, Meta(ge=1, le=1_000)] = 500  # messages per request
    max_wait_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = (
        300_000  # how long a task waits for a server that is full, limits or is unreachable
    )


_WRITE_ID_CHARS_MAX: Final = 200


def read_options(kind: type[_T], given: Mapping[str, str]) -> _T:
    """Return the options; raise Invalid with the wrong one and the valid names."""
    names = {field.encode_name.lower(): field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name.lower() in _OF_SPARK and name.lower() not in names:
            continue
        if name.lower() not in names:
            known = ", ".join(field.encode_name for field in names.values())
            raise Invalid(f"option {name[:80]}: unknown option; must be one of {known}")
        values[names[name.lower()].encode_name] = text
    for field in names.values():
        if field.required and not values.get(field.encode_name):
            raise Invalid(f"option {field.encode_name}: is missing; give .option({field.encode_name!r}, …)")
        if field.name == "token" and values.get("token") == "":
            raise Invalid("option token: is empty")
    try:
        options = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"option {_described(str(error), kind, values)}") from None  # the cause would show values
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


def _described(text: str, kind: type[msgspec.Struct], values: dict[str, Any]) -> str:
    """Turn msgspec's text (what - at `$.name`) into ours (name: what), with both ends of a range."""
    what, _, place = text.partition(" - at `$.")
    name = place.rstrip("`")
    if "`int` >=" in what or "`int` <=" in what:
        field = next(one for one in msgspec.inspect.type_info(kind).fields if one.encode_name == name)  # type: ignore[attr-defined]
        choices = getattr(field.type, "types", (field.type,))
        (number,) = (one for one in choices if isinstance(one, msgspec.inspect.IntType))
        return f"{name}: {values[name]} is not from {number.ge} to {number.le}"
    return f"{name}: {what}" if name else what
