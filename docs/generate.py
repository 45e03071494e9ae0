"""Writes the parts of the reference that come from the code.

A page holds a generated part between two comments:

    <!-- generated: settings HttpSettings -->
    <!-- end generated -->

``python -m docs.generate`` rewrites all of them in place; ``--check`` only reports pages that are out of date.

MkDocs loads this file as a hook too. It expands ``<!-- generated at build: commands -->``, which is too long to keep in
the repository, adds the decision records to the navigation, and labels table cells for narrow screens.
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

DOCS: Final = Path(__file__).resolve().parent
REFERENCE: Final = DOCS / "reference"
AT_BUILD: Final = re.compile(r"<!-- generated at build: (\w+) -->")
PART: Final = re.compile(r"(<!-- generated: (\w+) ?([\w, ]*) -->\n)(.*?)(<!-- end generated -->)", re.DOTALL)


def settings(name: str) -> str:
    """Return a line per setting of one type: name, default, range, meaning. Sections have headings instead.

    Settings that both listeners share are described for HTTP only.
    """
    lines = _setting_lines(name)
    if name != "RpcSettings":
        return "".join(lines.values())
    shared = [field for field, line in _setting_lines("HttpSettings").items() if lines.get(field) == line]
    rest = "".join(line for field, line in lines.items() if field not in shared)
    return f"- {_names(shared)}: As for the [HTTP listener](#http-listener).\n{rest}"


def _setting_lines(name: str) -> dict[str, str]:
    from tenantq.domain.validation import reference  # noqa: PLC0415  # the commands need none of it

    written = tomllib.loads((REFERENCE / "settings.toml").read_text()).get(name, {})
    lines = {}
    for field in reference(settings_types()[name]):
        if field.section is not None and field.name not in written:
            continue  # it has a heading
        assert bool(field.description) != (field.name in written), f"{name}.{field.name}: one description is needed"
        meaning = (field.description or written[field.name]).replace("*", "\\*")
        if field.default is msgspec.NODEFAULT:
            start = f"`{field.name}` (required)"
        else:
            start = f"`{field.name}{_default(field.default)}`"
        allowed = _allowed(field.allowed, field.unit)
        lines[field.name] = f"- {start}{allowed and f' ({allowed})'}: {meaning}\n"
    return lines


def _allowed(text: str, unit: str) -> str:
    """Return a range for readers: with separators or binary units, without limits that only a number's size sets."""
    if found := re.fullmatch(r"(\d+) to (\d+)", text):
        low, high = int(found[1]), int(found[2])
        if high >= 1 << 53:
            return f"at least {low:,}" if low else ""
        binary = unit == "bytes" and not low % 1024 and not high % 1024
        return f"{_binary(low)}\N{EN DASH}{_binary(high)}" if binary else f"{low:,}\N{EN DASH}{high:,}"
    if "characters of" in text:
        return ""  # names, whose rules are on the page once
    return re.sub(r"'(\w{2,})'", r'`"\1"`', text)


def _binary(value: int) -> str:
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if value and not value % (1 << power):
            return f"{value >> power} {unit}"
    return str(value)


def _default(value: object) -> str:
    """Return a default as in a TOML file, or nothing."""
    if value is None or value in ((), {}, "") or isinstance(value, msgspec.Struct):
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f" = {value:_}"
    return f" = {msgspec.json.encode(value).decode()}"


def settings_types() -> dict[str, type[msgspec.Struct]]:
    """Return every settings type by its name: those of a server, a tenant and a queue, with their sections."""
    from tenantq.domain.config import TenantConfig  # noqa: PLC0415  # the commands need none of these
    from tenantq.settings import ServerSettings  # noqa: PLC0415

    found: dict[str, type[msgspec.Struct]] = {}
    for kind in _structs(ServerSettings, TenantConfig):
        found.setdefault(kind.__name__, kind)
    del found["Limits"]  # two rates, which have a table
    return found


def _structs(*kinds: type) -> Iterator[type[msgspec.Struct]]:
    for kind in kinds:
        info = msgspec.inspect.type_info(kind)
        yield from _struct_types(info, set())


def _struct_types(info: msgspec.inspect.Type, seen: set[type]) -> Iterator[type[msgspec.Struct]]:
    if isinstance(info, msgspec.inspect.StructType):
        if info.cls in seen:
            return
        seen.add(info.cls)
        yield info.cls
        for field in info.fields:
            yield from _struct_types(field.type, seen)
    elif isinstance(info, msgspec.inspect.UnionType):
        for one in info.types:
            yield from _struct_types(one, seen)
    elif isinstance(info, msgspec.inspect.Metadata):
        yield from _struct_types(info.type, seen)
    elif isinstance(info, msgspec.inspect.DictType):
        yield from _struct_types(info.value_type, seen)
    elif isinstance(info, msgspec.inspect.VarTupleType):
        yield from _struct_types(info.item_type, seen)


def commands(_: str) -> str:
    """Return a section per command: usage, description, options. Connection options are described once, by hand."""
    from tenantq.cli.command_group import ConnectionOption  # noqa: PLC0415  # the settings need none of it
    from tenantq.cli.command_line import tenantq  # noqa: PLC0415

    parts = []
    for path, command in walk(tenantq, "tenantq"):
        if path == "tenantq":
            continue
        context = click.Context(command, info_name=path)
        usage = (
            " ".join([path, *command.collect_usage_pieces(context)]).replace("[OPTIONS] ", "").replace(" [OPTIONS]", "")
        )
        level = "##" if path.count(" ") == 1 else "###"
        part = [f"{level} `{path}`", ""]
        if not isinstance(command, click.Group):
            part += [f"`{usage}`", ""]
        part += [*_prose(command.help or ""), ""]
        options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
        shown = [one for one in options if not isinstance(one, ConnectionOption) and "--json" not in one.opts]
        part += [_option(option, context) for option in shown]
        parts.append("\n".join(part).rstrip() + "\n")
    return "\n".join(parts)


def command_index(_: str) -> str:
    """Return links to all commands, a line per group."""
    from tenantq.cli.command_line import tenantq  # noqa: PLC0415

    lines: dict[str, list[str]] = {}
    for path, command in walk(tenantq, "tenantq"):
        if not isinstance(command, click.Group):
            group, name = path.rsplit(" ", 1)
            lines.setdefault(group, []).append(f"[{name}](#{path.replace(' ', '-')})")
    return "".join(f"- `{group}`: {', '.join(links)}\n" for group, links in lines.items())


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield a command and all below it, each with its full name."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from walk(child, f"{path} {name}")


def _option(option: click.Option, context: click.Context) -> str:
    from tenantq.cli.command_group import help_record  # noqa: PLC0415  # the settings need none of it

    names, text = help_record(option, context)
    text = re.sub(r"\s+", " ", text).replace("[", "(").replace("]", ")").replace("<", "&lt;").replace("*", "\\*")
    return f"- `{names}`: {text}"


def _prose(text: str) -> list[str]:
    lines: list[str] = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b\n"):
            lines += ["```text", paragraph.removeprefix("\b\n"), "```", ""]
        else:
            flat = " ".join(paragraph.split()).replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")
            lines += [flat, ""]
    return lines[:-1]


def routes(_: str) -> str:
    """Return the table of HTTP calls."""
    from tenantq.http.routes import ROUTES  # noqa: PLC0415

    rows = []
    for route in ROUTES:
        if "/v1/queues" not in route.path and route.path != "/v1/tenant":  # the same in the credential's own tenant
            short = route.path.replace("/v1/tenants/{tenant}/queues/{queue}", "…/{queue}").replace(
                "/v1/tenants/{tenant}", "…"
            )
            rows.append((f"`{route.method} {short}`", route.summary, f"`{route.action}`" if route.action else "none"))
    return _table(("call", "what it does", "action"), rows)


def roles(_: str) -> str:
    """Return the actions of each role. Administrators have those of all roles above them."""
    from tenantq.domain.access import ACTIONS, MATRIX, ROLES  # noqa: PLC0415

    rows, covered = [], set[str]()
    for role in reversed(ROLES):
        allowed = [action for action in ACTIONS if action in MATRIX[role]]
        if role in {"tenant-admin", "platform-admin"}:
            assert covered < set(allowed)
            rows.append((f"`{role}`", f"All above, {_names([action for action in allowed if action not in covered])}"))
        else:
            rows.append((f"`{role}`", _names(allowed)))
        covered |= set(allowed)
    return _table(("role", "actions"), rows)


def sqs(_: str) -> str:
    """Return the conformance table: every action of Amazon SQS, and how it differs here."""
    from tenantq.sqs.actions.table import ACTIONS  # noqa: PLC0415

    notes = tomllib.loads((REFERENCE / "sqs.toml").read_text())
    unknown = set(notes) - set(ACTIONS)
    assert not unknown, f"sqs.toml names actions that do not exist: {unknown}"
    rows = []
    for name, (_act, action) in ACTIONS.items():
        note = notes.get(name, {})
        differs, refused = note.get("differs", ""), note.get("refused", "")
        verdict = "differs" if differs else "works"
        rows.append(
            (f"`{name}`", f"`{action}`", verdict, " ".join(filter(None, (differs, refused and f"Refused: {refused}"))))
        )
    return _table(("action", "needs", "verdict", "difference"), rows)


def tables(_: str) -> str:
    """Return a section per table of the lake: layer, sources, partitions, order and columns."""
    from tenantq.pipeline.lineage import lineage  # noqa: PLC0415  # needs PySpark

    parts = []
    for node in lineage():
        columns = ", ".join(
            f"`{name}`" + ("" if kind == "string" else f" {kind.replace('<', '&lt;')}") for name, kind in node.columns
        )
        partitions = f"Partitions: {_names(node.partitions)}. " if node.partitions else ""
        parts += [
            f"### `{node.name}`",
            "",
            f"- {node.layer.capitalize()}. Sources: {_names(node.sources)}.",
            f"- {partitions}Order: {_names(node.order)}.",
            f"- A run recomputes {node.scope}.",
            f"- Columns: {columns}.",
            "",
        ]
    return "\n".join(parts)


def decisions(_: str) -> str:
    """Return the list of decision records, with those that replace each."""
    lines = []
    for path, title in decision_records():
        found = re.search(r"^\*\*S(uperseded by .*)\*\*", path.read_text(), re.MULTILINE)
        lines.append(f"- [{title}]({path.name}){f', s{found[1]}' if found else ''}\n")
    return "".join(lines)


def decision_records() -> list[tuple[Path, str]]:
    """Return every decision record with its title, in order."""
    found = sorted((DOCS / "internals" / "decisions").glob("0*.md"))
    return [(path, path.read_text().partition("\n")[0].removeprefix("# ")) for path in found]


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    used = [index for index in range(len(head)) if any(row[index] for row in rows)]
    lines = [[head[index] for index in used], ["---"] * len(used), *([row[index] for index in used] for row in rows)]
    # Without outer bars the first and the last cell must not be empty.
    return "".join(" | ".join([line[0] or "-", *line[1:-1], line[-1] or "-"]) + "\n" for line in lines)


PARTS: Final[dict[str, Callable[[str], str]]] = {
    "command_index": command_index,
    "commands": commands,
    "decisions": decisions,
    "roles": roles,
    "routes": routes,
    "settings": settings,
    "sqs": sqs,
    "tables": tables,
}


def generate(page: str) -> str:
    """Return ``page`` with every generated part rewritten."""
    return PART.sub(lambda found: f"{found[1]}{PARTS[found[2]](found[3])}{found[5]}", page)


def pages() -> Iterator[tuple[Path, str, str]]:
    """Yield each page with generated parts: its path, its text, and what the text should be."""
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text()
        if PART.search(text):
            yield path, text, generate(text)


def main(arguments: list[str]) -> int:
    """Rewrite the pages, or with ``--check`` name those that are out of date."""
    stale = [(path, made) for path, text, made in pages() if text != made]
    for path, made in stale:
        print(path.relative_to(DOCS.parent))
        if "--check" not in arguments:
            path.write_text(made)
    return 1 if stale and "--check" in arguments else 0


def written_text(page: str) -> str:
    """Return ``page`` without its generated parts: the sentences a person wrote."""
    return PART.sub("", page)


def on_config(config: Any) -> Any:
    """Add the decision records to MkDocs' navigation."""
    for section in config.nav:
        for entry in section.get("Internals", ()):
            if isinstance(entry, dict) and "Decisions" in entry:
                entry["Decisions"] += [
                    {title: f"internals/decisions/{path.name}"} for path, title in decision_records()
                ]
    return config


def on_page_markdown(markdown: str, **_: object) -> str:
    """Expand what MkDocs alone shows."""
    return AT_BUILD.sub(lambda found: PARTS[found[1]](""), markdown)


def on_page_content(html: str, **_: object) -> str:
    """Label every table cell with its column's heading, for narrow screens."""
    return re.sub(r"<table>.*?</table>", lambda found: _labelled(found[0]), html, flags=re.DOTALL)


def _labelled(table: str) -> str:
    labels = [re.sub(r"<.*?>", "", head) for head in re.findall(r"<th>(.*?)</th>", table, re.DOTALL)]
    cells = iter(range(table.count("<td>")))
    return re.sub("<td>", lambda _: f'<td data-label="{labels[next(cells) % len(labels)]}">', table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
