"""``tenantq add``: add one message, or a stream of messages."""

import itertools
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import IO, Any, Final

import click
import msgspec
from rich.progress import BarColumn, TaskProgressColumn, TimeElapsedColumn

from tenantq.cli import exit_codes
from tenantq.cli.command_group import Command
from tenantq.cli.connection import ServerConnection, connected
from tenantq.cli.options import duration, split_pair
from tenantq.cli.output import json_option, print_json, print_json_line, said
from tenantq.cli.progress import print_above_bar, progress_bar
from tenantq.client import Queue
from tenantq.client.bodies import from_wire
from tenantq.client.values import Added
from tenantq.domain.message import NewMessage
from tenantq.errors import Invalid, TenantqError
from tenantq.wire.messages import WireMessage

_BATCH: Final = 1_000
_ERRORS_SHOWN: Final = 10
_LINE_BYTES_MAX: Final = 4 << 20
_LINE_FIELDS: Final = frozenset(WireMessage.__struct_fields__)


@click.command(cls=Command)
@click.argument("queue")
@click.argument("body", required=False)
@click.option("--jsonl", is_flag=True, help="Read stdin as JSON lines, one message object per line.")
@click.option("--lines", is_flag=True, help="Read stdin as text, one message per line.")
@click.option("--key", metavar="TEXT", help="Idempotency key. Adding the same key again has no effect.")
@click.option("--priority", type=click.IntRange(0, 9), metavar="0-9", help="Priority; 9 is delivered first.")
@click.option("--delay", "delay_ms", type=duration, help="Delay before the first delivery.")
@click.option("--ttl", "ttl_ms", type=duration, help="Time to live, counted from when it becomes visible.")
@click.option("--group", metavar="TEXT", help="Message group. A group is delivered one message at a time, in order.")
@click.option("--attribute", "attributes", multiple=True, metavar="NAME=VALUE", help="Attribute to send with the body; repeatable.")  # fmt: skip
@click.option("--max-attempts", type=int, metavar="N", help="Deliveries before the message is dead-lettered.")
@json_option
@connected
def add(
    connection: ServerConnection,
    *,
    queue: str,
    body: str | None,
    jsonl: bool,
    lines: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Add one or more messages to a queue.

    Without BODY, or with -, the body is read from stdin, byte for byte. With --jsonl, each line is an object with the
    fields of the HTTP API: body (text or any JSON) or body_base64, priority, delay_ms, ttl_ms, key, group, attributes and
    max_attempts. Options set the default for lines without that field. When the command returns, every counted message
    is durable.

    \b
    tenantq add mail hello --priority 5
    tenantq add mail --jsonl < messages.jsonl
    """
    there = connection.queue(queue)
    options["attributes"] = dict(split_pair(text, "--attribute") for text in options["attributes"]) or None
    given = {name: value for name, value in options.items() if value is not None}
    if (jsonl or lines) and body not in (None, "-"):
        raise click.UsageError("--jsonl and --lines read from stdin: omit BODY.")
    if jsonl and lines:
        raise click.UsageError("Give either --jsonl or --lines, not both.")
    if (jsonl or lines) and "key" in given:
        raise click.UsageError("--key applies to a single message. With --jsonl, set a key in each line.")
    if jsonl or lines:
        parse = partial(_json_message, given) if jsonl else lambda line: NewMessage(body=line, **given)
        return _add_many(there, parse, as_json=as_json)
    added = there.add(_body(body), **given)
    if as_json:
        print_json({"id": added.id, "duplicate": added.duplicate})
    else:
        click.echo(added.id)
        if added.duplicate:
            said("duplicate: a message with this key already exists")
    return exit_codes.OK


def _body(argument: str | None) -> bytes:
    if argument is not None and argument != "-":
        return argument.encode()
    if sys.stdin.isatty():
        said("Type the message, then press Ctrl-D.")
    return sys.stdin.buffer.read()


# ---- many ----


def _json_message(given: dict[str, Any], line: bytes) -> NewMessage:
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"is not valid JSON ({error})") from error
    except RecursionError as error:
        raise Invalid("is nested too deeply") from error
    if not isinstance(fields, dict) or not ("body" in fields or "body_base64" in fields):
        raise Invalid("is not an object with body or body_base64")
    if unknown := fields.keys() - _LINE_FIELDS:
        raise Invalid(f"has an unknown field {min(unknown)[:80]!r}")
    body = _json_body(fields.pop("body", None), fields.pop("body_base64", None))
    return NewMessage(body=body, **{**given, **fields})


def _json_body(body: object, encoded: object) -> bytes:
    if encoded is not None:
        if body is not None:
            raise Invalid("has both body and body_base64; give one")
        if not isinstance(encoded, str):
            raise Invalid("has a body_base64 that is not a string")
        try:
            return from_wire(None, encoded) or b""
        except Invalid as error:
            raise Invalid("has a body_base64 that is not valid base64") from error
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


class _AddTotals:
    """Counts the lines that were added and refused."""

    def __init__(self) -> None:
        self.added = self.duplicates = self.refused = 0
        self.last_line = 0  # with a known outcome
        self.worst = exit_codes.OK

    def so_far(self) -> str:
        """Return the counts of an incomplete run."""
        return f"added {self.added} so far; lines after {self.last_line} may not have been added"

    def refuse(self, line: int, error: TenantqError) -> None:
        self.refused += 1
        self.worst = self.worst or exit_codes.exit_code(error)
        if self.refused <= _ERRORS_SHOWN:
            print_above_bar(f"tenantq: line {line}: {error.message} [{error.code}]")
        elif self.refused == _ERRORS_SHOWN + 1:
            print_above_bar("tenantq: further refused lines are counted, not listed")


def _add_many(queue: Queue, parse: Callable[[bytes], NewMessage], *, as_json: bool) -> int:
    totals = _AddTotals()
    started = time.monotonic()
    try:
        with _progress(sys.stdin.buffer) as update:
            numbered = _read_lines(sys.stdin.buffer)
            while batch := list(itertools.islice(numbered, _BATCH)):
                _send(queue, batch, parse, totals, as_json=as_json)
                update(advance=sum(len(line) + 1 for _, line in batch), added=totals.added)
    except TenantqError as error:
        error.add_note(totals.so_far())
        raise
    except KeyboardInterrupt:
        click.echo(f"tenantq: interrupted; {totals.so_far()}", err=True)
        raise
    if not as_json:
        took = time.monotonic() - started
        click.echo(f"added {totals.added} ({totals.duplicates} duplicates, {totals.refused} refused) in {took:.1f} s")
    return totals.worst


def _send(
    queue: Queue, batch: list[tuple[int, bytes]], parse: Callable[[bytes], NewMessage], totals: _AddTotals, *, as_json: bool
) -> None:  # fmt: skip
    """Send the valid lines together, and report every line in order."""
    parsed: list[NewMessage | TenantqError] = []
    for _, line in batch:
        try:
            parsed.append(parse(line))
        except TenantqError as refusal:
            parsed.append(refusal)
    outcomes = iter(queue.add_many([one for one in parsed if isinstance(one, NewMessage)], errors="return"))
    for (number, _), one in zip(batch, parsed, strict=True):
        added = Added("", error=one) if isinstance(one, TenantqError) else next(outcomes)
        if added.error is not None:
            totals.refuse(number, added.error)
        else:
            totals.added += 1
            totals.duplicates += added.duplicate
        totals.last_line = number
        if as_json:
            print_json_line(_outcome(number, added))


def _outcome(line: int, added: Added) -> dict[str, Any]:
    error = added.error
    return {
        "line": line,
        "id": added.id or None,
        "duplicate": added.duplicate,
        "error": None if error is None else {"code": error.code, "detail": error.message},
    }


def _read_lines(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, with their numbers and without line ends. Raises Invalid for a line larger than any message."""
    for number in itertools.count(1):
        line = stream.readline(_LINE_BYTES_MAX + 1)
        if not line:
            return
        if len(line) > _LINE_BYTES_MAX:
            raise Invalid(f"line {number} is too long (more than {_LINE_BYTES_MAX} bytes)")
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if line.strip():
            yield number, line


def _progress(stream: IO[bytes]) -> AbstractContextManager[Callable[..., None]]:
    """Return a progress bar. Only a file has a known size."""
    columns = ("{task.fields[added]:,} added", BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    total = None
    if sys.stderr.isatty():
        found = os.fstat(stream.fileno())
        total = found.st_size if stat.S_ISREG(found.st_mode) else None
    return progress_bar(*columns, total=total, added=0)
