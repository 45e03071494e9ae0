"""The server, its commands and the SDK work without any extra."""

from __future__ import annotations

import subprocess
import sys

import pytest

EXTRAS = (
    "pyarrow", "fsspec", "pyspark", "deltalake", "pandas", "numpy", "jinja2", "capnp", "boto3", "google", "redis",
    "hiredis", "azure", "psycopg", "pika", "textual", "textual_serve", "aiohttp", "requests", "opentelemetry",
)  # fmt: skip
"""What extras install."""

PROGRAM = """
import sys
for name in {extras!r}:
    sys.modules[name] = None  # importing it fails, as if it were not installed
import importlib
for name in {modules!r}:
    importlib.import_module(name)
from tenantq.cli.main import main
main()
"""


@pytest.mark.parametrize("arguments", [("--help",), ("serve", "--help"), ("demo", "--help"), ("alert", "--help")])
def test_commands_start_without_extras(arguments: tuple[str, ...]) -> None:
    """Nothing imports an optional library before it is needed."""
    modules = ("tenantq.server.embedded", "tenantq.cli.commands.demo", "tenantq.client", "tenantq.worker")
    program = PROGRAM.format(extras=EXTRAS, modules=modules)
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: " in done.stdout
