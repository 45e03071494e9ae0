"""The log on stderr: text lines, or a JSON object per line."""

import logging
import sys
import time
from typing import Literal

import msgspec

from tenantq.runtime.log_context import add_request_fields, extra_fields

_encode = msgspec.json.Encoder(enc_hook=str).encode


def set_up_logs(level: str, kind: Literal["text", "json"], shard: str | None = None) -> None:
    """Write log records of at least ``level`` to stderr, with the name of the shard if given."""
    handler = logging.StreamHandler(sys.stderr)
    if shard is not None:
        handler.addFilter(lambda record: _name_shard(record, shard))
    handler.setFormatter(_JsonFormatter() if kind == "json" else _TextFormatter())
    handler.addFilter(add_request_fields)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _name_shard(record: logging.LogRecord, shard: str) -> bool:
    record.shard = shard
    return True


def _when(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03}Z"


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        extras = "".join(f" {name}={value}" for name, value in extra_fields(record).items())
        line = f"{_when(record)} {record.levelname:7} {record.name}: {record.getMessage()}{extras}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        shown = {
            "at": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extra_fields(record),
        }
        if record.exc_info:
            shown["trace"] = self.formatException(record.exc_info)
        return _encode(shown).decode()
