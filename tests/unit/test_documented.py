"""Everything a user can type, configure, encounter or read in the journal is documented."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click
import pytest

from docs import generate
from tenantq import errors
from tenantq.cli.command_line import tenantq as command_line
from tenantq.cli.exit_codes import exit_code
from tenantq.doctor.report import FindingKind
from tenantq.journal.record import JournalRow
from tenantq.testing import FakeServer

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = Path(__file__).resolve().parents[2]
DOCS = PROJECT / "docs"
README = (PROJECT / "README.md").read_text()
SOURCES = sorted((PROJECT / "src" / "tenantq").rglob("*.py"))


def page(name: str) -> str:
    """Return a reference page."""
    return (DOCS / "reference" / f"{name}.md").read_text()


def section(text: str, heading: str) -> str:
    """Return the part of a page under a heading."""
    return re.split(r"\n#+ ", text.split(f"# {heading}\n")[1])[0]


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of table rows that begin with code."""
    return [line.strip("|").split("|") for line in text.splitlines() if re.match(r"(\| ?)?`.*\|", line)]


def names(rows: list[list[str]]) -> set[str]:
    """Return every name in the first cells of a table."""
    return {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}


def test_every_command_and_option_is_documented() -> None:
    """The site has a section for each command; the connection options are described once."""
    shown = generate.commands("")
    shared = section(page("commands"), "Connection options")
    for path, command in generate.walk(command_line, "tenantq"):
        if path == "tenantq":
            continue
        assert f"# `{path}`\n" in shown, path
        text = shown.split(f"# `{path}`\n")[1].split("\n## ")[0].split("\n### ")[0]
        options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
        if any("--url" in option.opts and option.envvar for option in options):
            text += shared
        for option in options:
            assert option.hidden or "--json" in option.opts or any(name in text for name in option.opts), (path, option)


def _pages() -> Iterator[Path]:
    yield PROJECT / "README.md"
    yield from sorted(DOCS.rglob("*.md"))


@pytest.mark.parametrize("path", list(_pages()), ids=lambda path: str(path.relative_to(PROJECT)))
def test_documented_commands_and_options_exist(path: Path) -> None:
    """In the examples of every page."""
    commands = dict(generate.walk(command_line, "tenantq"))
    text = generate.written_text(path.read_text()).replace("\\\n", " ")
    for line in re.findall(r"^ *\$ (.*tenantq .*)$", text, re.MULTILINE):
        for found in re.findall(r"(?:^|[ (=|])(tenantq(?: [a-z]+)+)", line):
            words = found.split()
            while " ".join(words) not in commands:
                words.pop()
            assert len(words) > 1, (line, found)
        options = {name for command in commands.values() for option in command.params for name in option.opts}
        used = re.findall(r"(?<=\s)--[a-z][a-z-]+", line.split("tenantq", 1)[1])
        assert set(used) <= options | {"--help", "--version", "--json"}, line


def test_every_exit_code_is_documented() -> None:
    """With the error codes that lead to it."""
    listed = {
        (int(code), name)
        for code, *cells in re.findall(
            r"^\| (\d+) \|(.*)\|(.*)\|$", section(page("errors"), "Exit codes"), re.MULTILINE
        )
        for name in re.findall(r"`(\w+)`", cells[1])
    }
    assert listed == {(exit_code(kind()), kind.code) for kind in _errors()}


def _errors() -> list[type[errors.TenantqError]]:
    return [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.TenantqError)]


def test_every_error_is_documented_with_its_code_and_status() -> None:
    """Only existing errors are listed."""
    rows = table_rows(section(page("errors"), "Errors"))
    listed = {tuple(cell.strip("` ") for cell in row[:3]) for row in rows}
    assert listed == {(kind.__name__, kind.code, str(kind.status)) for kind in _errors()}


def test_every_setting_is_documented() -> None:
    """Each settings type has a generated list; the generator fails for a setting without a description."""
    text = page("settings") + page("limits")
    for name, kind in generate.settings_types().items():
        assert f"<!-- generated: settings {name} -->" in text, name
        starts = re.findall(r"^- ((?:`[^`]+`(?:, )?)+)", generate.settings(name), re.MULTILINE)
        listed = [field for start in starts for field in re.findall(r"`(\w+)[^`]*`", start)]
        sections = [field for field in kind.__struct_fields__ if field not in listed]
        assert [field for field in kind.__struct_fields__ if field not in sections] == listed
        for field in sections:
            assert re.search(rf"Section `(\w+\.)*{field}`", text), (name, field)


def test_every_metric_is_documented() -> None:
    """Each has a row, and no other metric is listed. Tests of the other listener compare its own."""
    listed = {name for name in names(table_rows(page("metrics"))) if not name.startswith("tenantq_rpc_")}
    with FakeServer() as server:
        text = server.client().metrics()
    served = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    not_in_a_fake = {  # this server has no export, no self-checks, one shard and no remote store
        "tenantq_shard_up",
        *re.findall(r"`(tenantq_cluster_\w+)`", page("metrics")),
        *re.findall(r"`(tenantq_(?:redis|postgres)_\w+)`", page("metrics")),
        "tenantq_self_check_ok",
        "tenantq_self_check_time_seconds",
        "tenantq_self_check_ms",
        "tenantq_self_checks_total",
        "tenantq_journal_lag_records",
        "tenantq_journal_lag_bytes",
        "tenantq_journal_rows_exported_total",
        "tenantq_journal_export_failures_total",
    }
    assert {name for name in listed if name.startswith("tenantq_")} == served | not_in_a_fake


def journal_ops() -> set[str]:
    """Return the operations that the engine passes to ``log`` and ``log_tenant``, and the names of settling operations."""
    found: set[str] = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                if node.func.attr in {"log", "log_tenant"}:  # names in variables are found below
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


def test_every_audit_action_is_documented() -> None:
    """In the table of actions."""
    ops = journal_ops()
    assert {"add", "poll", "ack", "dead_letter", "create_tenant", "resume_queue", "trim_journal"} <= ops
    assert names(table_rows(section(page("audit"), "Actions"))) == ops


def test_every_journal_column_is_documented() -> None:
    """In the table of columns."""
    assert names(table_rows(section(page("audit"), "Columns"))) == set(JournalRow.__struct_fields__)


def test_every_kind_of_finding_is_documented() -> None:
    """In the table of the doctor."""
    assert names(table_rows(section(page("errors"), "Doctor findings"))) == set(get_args(FindingKind))


def test_every_make_target_is_in_the_readme() -> None:
    """Targets declared as phony."""
    makefile = (PROJECT / "Makefile").read_text()
    for target in makefile.split(".PHONY:")[1].split("\n")[0].split():
        assert f"`make {target}`" in README
