"""Whatever a user can type, set, meet or read in the journal stands in the documentation."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click
import msgspec
import pytest

from tenantq import errors
from tenantq.cli.main import tenantq as command_line
from tenantq.config import QueueConfig, ShardSettings, TenantConfig
from tenantq.doctor import Kind
from tenantq.engine import shard as _every_operation_is_imported_by_it  # noqa: F401
from tenantq.journal.record import Row
from tenantq.quotas import Quotas
from tenantq.rates import Concurrency, Rate

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = Path(__file__).resolve().parents[2]
DOCS = {path.name: path.read_text() for path in (PROJECT / "docs").glob("*.md")}
SOURCES = sorted((PROJECT / "src" / "tenantq").rglob("*.py"))


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _commands(child, f"{path} {name}")


def test_every_command_and_option_is_documented() -> None:
    """The commands' section of docs/operations.md has them all."""
    text = DOCS["operations.md"]
    for path, command in _commands(command_line, "tenantq"):
        heading = "## Commands" if path == "tenantq" else f"### `{path}`"
        assert heading in text
        section = text.split(heading)[1].split("\n#")[0]
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert any(option in section for option in parameter.opts), (path, parameter.opts)
                assert parameter.envvar is None or str(parameter.envvar) in section


@pytest.mark.parametrize("kind", [ShardSettings, TenantConfig, QueueConfig])
def test_every_setting_is_documented_with_its_default(kind: type[msgspec.Struct]) -> None:
    """Each has a row with unit, default, range and meaning."""
    section = DOCS["operations.md"].split(f"`{kind.__name__}`")[1].split("\n#")[0]
    rows = {row[0].strip("` "): row for row in _table_rows(section)}
    for field, default in zip(kind.__struct_fields__, kind.__struct_defaults__, strict=True):
        assert field in rows, field
        assert len(rows[field]) == 5
        if not isinstance(default, msgspec.Struct) and default != ():  # groups have tables of their own
            assert rows[field][2].strip() == _shown(default), field


@pytest.mark.parametrize("kind", [Quotas, Rate, Concurrency])
def test_every_limit_is_documented(kind: type[msgspec.Struct]) -> None:
    """In the tables of docs/limits.md, and nothing stands there that cannot be set."""
    listed = {
        name for row in _table_rows(DOCS["limits.md"]) for name in re.findall(r"`(?:write\.|read\.)?(\w+)`", row[0])
    }
    assert set(kind.__struct_fields__) <= listed
    assert listed == {name for one in (Quotas, Rate, Concurrency) for name in one.__struct_fields__}


def _shown(default: object) -> str:
    if default is None:
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:,}" if isinstance(default, int) else f'`"{default}"`'


def _table_rows(text: str) -> list[list[str]]:
    return [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]


def test_every_error_is_documented_with_its_code_and_status() -> None:
    """And nothing stands there that does not exist."""
    rows = {tuple(cell.strip("` ") for cell in row[:3]) for row in _table_rows(DOCS["errors.md"])}
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.TenantqError)]
    assert rows == {(kind.__name__, kind.code, str(kind.status)) for kind in kinds}


def _journal_ops() -> set[str]:
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
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Entry":
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
    ops = _journal_ops()
    assert {"add", "poll", "ack", "dead_letter", "create_tenant", "resume_queue", "trim_journal"} <= ops
    table = DOCS["store.md"].split("| op | written when |")[1].split("refused as a whole")[0]
    listed = {op for row in _table_rows(table) for op in re.findall(r"`(\w+)`", row[0])}
    assert listed == ops


def test_every_journal_column_is_documented() -> None:
    """In the table of columns of docs/store.md."""
    table = DOCS["store.md"].split("| column | meaning |")[1].split("| op |")[0]
    assert {name for row in _table_rows(table) for name in re.findall(r"`(\w+)`", row[0])} == set(Row.__struct_fields__)


def test_every_kind_of_finding_is_documented() -> None:
    """In the doctor's section of docs/operations.md."""
    section = DOCS["operations.md"].split("| kind | what is wrong")[1].split("\n###")[0]
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


def test_the_readme_session_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twice, since a reader may try it twice."""
    (source,) = re.findall(r"```python\n(.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for done in (1, 2):
        exec(source, {})  # noqa: S102  # the session under test
        assert capsys.readouterr().out == f"b'hello' attempt 1\n{done} done\n"
