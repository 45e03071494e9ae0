"""Whatever a user can type, set, meet or read in the journal stands in the documentation."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

import click
import msgspec
import pytest

from tenantq import errors
from tenantq.cli.command_line import tenantq as command_line
from tenantq.cli.exit_codes import exit_code
from tenantq.cluster.settings import ShardsSettings
from tenantq.doctor import Kind
from tenantq.domain.config import Encryption, QueueConfig, ShardSettings, TenantConfig
from tenantq.domain.quotas import Quotas
from tenantq.domain.rates import Concurrency, Rate
from tenantq.domain.sqs_queue import SqsQueue
from tenantq.engine import shard as _every_operation_is_imported_by_it  # noqa: F401
from tenantq.gates.certificate import CertificateGrant
from tenantq.gates.json_web_token import JwtSettings
from tenantq.gates.signals import SignalSettings
from tenantq.http.settings import HttpSettings
from tenantq.journal.checkpoint import AuditSettings
from tenantq.journal.export_settings import ExportSettings
from tenantq.journal.record import JournalRow
from tenantq.rpc.settings import RpcSettings
from tenantq.runtime.tls import TlsFiles
from tenantq.service.gate_settings import GateSettings
from tenantq.service.self_checks import CheckSettings
from tenantq.settings import ServerSettings
from tenantq.sqs import SqsSettings
from tenantq.store.redis.settings import RedisSettings
from tenantq.testing import FakeServer

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = Path(__file__).resolve().parents[2]
DOCS = {path.name: path.read_text() for path in sorted((PROJECT / "docs").rglob("*.md"))}
SOURCES = sorted((PROJECT / "src" / "tenantq").rglob("*.py"))


ALL_DOCS = "\n".join(DOCS.values())


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _commands(child, f"{path} {name}")


def _place(path: str) -> str:
    """Return the text about a command: a section of its own, or its row in the table of a group."""
    heading = f"\n### `{path}`"
    if heading in ALL_DOCS:
        return ALL_DOCS.split(heading)[1].split("\n#")[0]
    rows = [line for line in ALL_DOCS.splitlines() if re.match(rf"\| `{path}[` ]", line)]
    assert rows, f"{path} is not documented"
    return "\n".join(rows)


def test_every_command_and_option_is_documented() -> None:
    """In docs/reference/commands.md or the document of its subject; what commands share stands once."""
    assert "## Commands" in DOCS["operations.md"]
    shared = DOCS["commands.md"].split("## Options of every command that talks to a server")[1].split("\n## ")[0]
    for path, command in _commands(command_line, "tenantq"):
        if path == "tenantq":
            continue
        options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
        text = _place(path)
        if any("--url" in option.opts and option.envvar for option in options):
            text += shared
        for option in options:
            assert "--json" in option.opts or any(name in text for name in option.opts), (path, option.opts)
            assert option.envvar is None or str(option.envvar) in text, (path, option.envvar)


def test_nothing_is_documented_that_cannot_be_typed() -> None:
    """Every command and long option that docs/reference/commands.md and the README name exists."""
    commands = dict(_commands(command_line, "tenantq"))
    options = {name for command in commands.values() for option in command.params for name in option.opts}
    text = DOCS["commands.md"] + (PROJECT / "README.md").read_text()
    for found in re.findall(r"(?<![\w-])--[a-z][a-z-]+", "\n".join(re.findall(r"`([^`\n]+)`", text))):
        assert found in options | {"--help", "--version", "--json"}, found
    for found in re.findall(r"^\| `(tenantq(?: [a-z]+)+)", DOCS["commands.md"], re.MULTILINE):
        assert found in commands, found


def test_every_exit_code_is_documented() -> None:
    """With the error codes that lead to it."""
    section = DOCS["operations.md"].split("### Exit codes")[1].split("\n#")[0]
    listed = {
        (int(code), name)
        for code, *cells in re.findall(r"^\| (\d+) \|(.*)\|(.*)\|$", section, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", cells[1])
    }
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.TenantqError)]
    assert listed == {(exit_code(kind()), kind.code) for kind in kinds}


SETTINGS: Final = [
    ("operations.md", ServerSettings),
    ("operations.md", ShardSettings),
    ("operations.md", ShardsSettings),
    ("operations.md", GateSettings),
    ("stores.md", RedisSettings),
    ("operations.md", SignalSettings),
    ("operations.md", ExportSettings),
    ("operations.md", AuditSettings),
    ("operations.md", CheckSettings),
    ("operations.md", TenantConfig),
    ("operations.md", QueueConfig),
    ("http.md", HttpSettings),
    ("rpc.md", RpcSettings),
    ("sqs.md", SqsSettings),
    ("sqs.md", SqsQueue),
    ("encryption.md", Encryption),
]


@pytest.mark.parametrize(("document", "kind"), SETTINGS)
def test_every_setting_is_documented_with_its_default(document: str, kind: type[msgspec.Struct]) -> None:
    """Each has a row with unit, default, range and meaning."""
    (section,) = re.findall(rf"^#.*`{kind.__name__}`.*\n(?:(?!#).*\n)*", DOCS[document], re.MULTILINE)
    rows = {row[0].strip("` "): row for row in _table_rows(section)}
    assert set(rows) == set(kind.__struct_fields__)
    for field, default in zip(kind.__struct_fields__, kind.__struct_defaults__, strict=True):
        assert len(rows[field]) == 5
        if not isinstance(default, msgspec.Struct) and default != ():  # groups have tables of their own
            assert rows[field][2].strip() == _shown(default), field


def test_every_section_of_a_servers_settings_is_documented() -> None:
    """Wherever it stands, all its settings are there."""
    for kind in (JwtSettings, CertificateGrant, TlsFiles):
        for field in kind.__struct_fields__:
            assert re.search(rf"^\| `{field}` ", DOCS["access.md"] + DOCS["http.md"], re.MULTILINE), field


def test_every_metric_is_documented() -> None:
    """Each in a row, and nothing that a server does not have."""
    listed = set(re.findall(r"^\| `(tenantq_\w+)` ", DOCS["operations.md"] + DOCS["http.md"], re.MULTILINE))
    with FakeServer() as server:
        text = server.client().metrics()
    served = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    exported = {  # a fake exports nothing, and does not check itself
        "tenantq_self_check_ok",
        "tenantq_self_check_time_seconds",
        "tenantq_self_check_ms",
        "tenantq_self_checks_total",
        "tenantq_journal_lag_records",
        "tenantq_journal_lag_bytes",
        "tenantq_journal_rows_exported_total",
        "tenantq_journal_export_failures_total",
    }
    assert listed == served | exported


@pytest.mark.parametrize("kind", [Quotas, Rate, Concurrency])
def test_every_limit_is_documented(kind: type[msgspec.Struct]) -> None:
    """In the tables of docs/reference/limits.md, and nothing stands there that cannot be set."""
    listed = {
        name for row in _table_rows(DOCS["limits.md"]) for name in re.findall(r"`(?:write\.|read\.)?(\w+)`", row[0])
    }
    assert set(kind.__struct_fields__) <= listed
    assert listed == {name for one in (Quotas, Rate, Concurrency) for name in one.__struct_fields__}


def _shown(default: object) -> str:
    if default is None or type(default).__name__ == "Factory":  # msgspec's, of an empty mapping
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return f"`{msgspec.json.encode(default).decode()}`"
    return f"{default:,}" if isinstance(default, int) else f'`"{default}"`'


def _table_rows(text: str) -> list[list[str]]:
    return [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]


def test_every_error_is_documented_with_its_code_and_status() -> None:
    """And nothing stands there that does not exist."""
    rows = {tuple(cell.strip("` ") for cell in row[:3]) for row in _table_rows(DOCS["errors.md"])}
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.TenantqError)]
    assert rows == {(kind.__name__, kind.code, str(kind.status)) for kind in kinds}


def journal_ops() -> set[str]:
    """Return the texts that the engine gives to ``log`` and ``log_tenant``, and the names of settling operations."""
    found: set[str] = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                if node.func.attr in {"log", "log_tenant"}:  # a name in a variable is looked for below
                    texts = [part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
                    found |= {text for text in texts if isinstance(text, str)}
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "op":
                texts = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
                found |= {text for text in texts if isinstance(text, str) and text.startswith("quota_")}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "JournalEntry":
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value != "unexplained":
                    found.add(first.value)
            elif isinstance(node, ast.ClassDef):
                found |= set(_class_name_values(node))
    return found - {""}


def _class_name_values(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if (
            isinstance(part, ast.Assign)
            and isinstance(part.targets[0], ast.Name)
            and part.targets[0].id == "journal_op"
            and isinstance(part.value, ast.Constant)
        ):
            yield str(part.value.value)


def test_every_journal_op_is_documented() -> None:
    """In the table of ops, whether done or refused."""
    ops = journal_ops()
    assert {"add", "poll", "ack", "dead_letter", "create_tenant", "resume_queue", "trim_journal"} <= ops
    table = DOCS["stores.md"].split("| op | written when |")[1].split("refused as a whole")[0]
    listed = {op for row in _table_rows(table) for op in re.findall(r"`(\w+)`", row[0])}
    assert listed == ops


def test_every_journal_column_is_documented() -> None:
    """In the table of columns of docs/internals/stores.md."""
    table = DOCS["stores.md"].split("| column | meaning |")[1].split("| op |")[0]
    assert {name for row in _table_rows(table) for name in re.findall(r"`(\w+)`", row[0])} == set(
        JournalRow.__struct_fields__
    )


def test_every_kind_of_finding_is_documented() -> None:
    """In the doctor's section of docs/reference/operations.md."""
    section = DOCS["operations.md"].split("| kind | what is wrong")[1].split("\n#")[0]
    assert {row[0].strip("` ") for row in _table_rows(section)} == set(get_args(Kind))


def test_every_make_target_is_in_the_readme() -> None:
    """Those that are declared phony, that is, those to be typed."""
    readme, makefile = (PROJECT / "README.md").read_text(), (PROJECT / "Makefile").read_text()
    for target in makefile.split(".PHONY:")[1].split("\n")[0].split():
        assert f"`make {target}`" in readme


def test_links_between_documents_lead_somewhere() -> None:
    """Every relative link names a file or directory."""
    for path in [PROJECT / "README.md", PROJECT / "CHANGELOG.md", *(PROJECT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
            assert (path.parent / target).exists(), (path.name, target)
