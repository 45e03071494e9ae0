"""The description of the API: an OpenAPI document, and a page for people that loads no other files."""

import html
import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

from tenantq.http.openapi import openapi
from tenantq.http.reply import HTML, JsonReply, Reply
from tenantq.http.route import Route

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --accent: #2563eb; }
@media (prefers-color-scheme: dark) { :root { --accent: #7aa2ff; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; }
h1 { margin-bottom: 0; } h2 { border-bottom: 1px solid var(--line); margin-top: 2.5rem; text-transform: capitalize; }
a { color: var(--accent); } code, pre { font: 0.9em/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
nav a { display: inline-block; margin-right: 1rem; }
details { border: 1px solid var(--line); border-radius: 6px; margin: 0.5rem 0; padding: 0 0.75rem; }
summary { cursor: pointer; padding: 0.6rem 0; } summary small { display: block; opacity: 0.75; }
.method { color: var(--accent); font-weight: 700; display: inline-block; min-width: 4.2em; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin: 0.5rem 0 1rem; width: 100%; }
th, td { border-top: 1px solid var(--line); padding: 0.3rem 0.6rem 0.3rem 0; text-align: left; vertical-align: top; }
pre { background: var(--soft); border-radius: 6px; overflow-x: auto; padding: 0.6rem; white-space: pre; }
"""
_EXAMPLES: Final = {"tenant": "acme", "queue": "mails", "principal": "key:$KEY_ID"}


class Description:
    """Both descriptions of a route table, created on first use."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        self._routes = routes

    @cached_property
    def _document(self) -> dict[str, Any]:
        return openapi(self._routes)

    @cached_property
    def openapi(self) -> JsonReply[dict[str, Any]]:
        """The OpenAPI document."""
        return JsonReply(json.dumps(self._document, ensure_ascii=False, separators=(",", ":")).encode())

    @cached_property
    def page(self) -> Reply:
        """The page for people."""
        return Reply(_page(self._document).encode(), 200, HTML)


def _page(document: dict[str, Any]) -> str:
    info, schemas = document["info"], document["components"]["schemas"]
    sections = []
    for tag in document["tags"]:
        calls = [
            _call(method, path, operation, schemas)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
            if tag["name"] in operation["tags"]
        ]
        name = html.escape(tag["name"])
        sections.append(f'<h2 id="{name}">{name}</h2>\n<p>{html.escape(tag["description"])}</p>\n' + "\n".join(calls))
    links = "".join(f'<a href="#{html.escape(tag["name"])}">{html.escape(tag["name"])}</a>' for tag in document["tags"])
    types = "\n".join(_type(name, schema) for name, schema in schemas.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(info["title"])} {html.escape(info["version"])}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{html.escape(info["title"])}</h1>
<p>{html.escape(info["summary"])} Version {html.escape(info["version"])}.
Machine-readable: <a href="openapi.json">openapi.json</a>.</p>
<p>{_marked(info["description"])}</p>
<nav>{links}<a href="#errors">errors</a><a href="#types">types</a></nav>
{"".join(sections)}
<h2 id="errors">errors</h2>
{_errors(document["components"]["responses"])}
<h2 id="types">types</h2>
{types}
</body>
</html>
"""


def _call(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    parts = []
    if operation["parameters"]:
        found = ((one, one["schema"]) for one in operation["parameters"])
        rows = [(_code(one["name"]), one["in"], _kind(schema), _bounds(schema)) for one, schema in found]
        parts.append(_table(("parameter", "in", "type", "allowed"), rows))
    body = operation.get("requestBody")
    if body is not None:
        schema = body["content"]["application/json"]["schema"]
        needed = "" if body["required"] else ", optional"
        parts.append(f"<p>Body: {_kind(schema)}{needed}</p>")
    parts.append("<p>Example:</p>" + _example(method, path, operation, schemas))
    answers = [(_code(status), _answer(one)) for status, one in operation["responses"].items() if "$ref" not in one]
    parts.append(_table(("status", "reply"), answers))
    refusals = [status for status, one in operation["responses"].items() if "$ref" in one and status != "default"]
    if refusals:
        parts.append(f'<p><a href="#errors">Errors</a>: {", ".join(refusals)}</p>')
    if "x-tenantq-action" in operation:
        parts.append(f"<p>Requires the action {_code(operation['x-tenantq-action'])}.</p>")
    summary = html.escape(operation["summary"])
    return (
        f'<details id="{html.escape(operation["operationId"])}"><summary><span class="method">{method.upper()}</span> '
        f"{_code(path)}<small>{summary}</small></summary>\n" + "\n".join(parts) + "</details>"
    )


def _example(method: str, path: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    for name in re.findall(r"\{(\w+)\}", path):
        path = path.replace(f"{{{name}}}", _EXAMPLES.get(name, f"${name.upper()}"))
    lines = [f'curl -X {method.upper()} "$TENANTQ_URL{path}"']
    if operation.get("security") != []:
        lines.append('-H "Authorization: Bearer $TENANTQ_TOKEN"')
    body = operation.get("requestBody")
    if body is not None:
        lines.append("-H 'Content-Type: application/json'")
        shown = json.dumps(_sample(body["content"]["application/json"]["schema"], schemas))
        lines.append(f"-d '{shown}'")
    command = " \\\n  ".join(lines)
    return f"<pre>{html.escape(command)}</pre>"


def _sample(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """Return a small valid value: the required fields, or the first of several forms."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return _sample(schema["anyOf"][0], schemas)
    kind = schema.get("type")
    if kind == "object":
        names = list(schema.get("required", ()))
        if "if" in schema:  # the first of several forms
            names += (schema["if"].get("not") or schema["if"])["required"]
        return {name: _sample(schema["properties"][name], schemas) for name in names}
    if kind == "array":
        return [_sample(schema.get("items", {}), schemas)]
    if kind == "integer":
        return max(1, schema.get("minimum", 1))
    return schema["enum"][-1] if "enum" in schema else "..."


def _answer(response: dict[str, Any]) -> str:
    kinds = [_kind(content["schema"]) for content in response.get("content", {}).values()]
    return html.escape(response["description"]) + (f": {kinds[0]}" if kinds else "")


def _type(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        (_code(field), _kind(kind), _bounds(kind), "required" if field in required else _default(kind))
        for field, kind in schema.get("properties", {}).items()
    ]
    name = html.escape(name)
    meaning = _marked(schema.get("description", ""))
    return (
        f'<details id="type-{name}"><summary><code>{name}</code><small>{meaning}</small></summary>\n'
        + (_table(("field", "type", "allowed", "default"), rows) if rows else "<p>No fields.</p>")
        + "</details>"
    )


def _errors(responses: dict[str, Any]) -> str:
    meanings = {name.removeprefix("Problem") or "other": one["description"] for name, one in responses.items()}
    rows = [(_code(status), html.escape(meaning)) for status, meaning in meanings.items()]
    return _table(("status", "meaning"), rows)


def _kind(schema: dict[str, Any]) -> str:
    """Return a short description of a type, linked if it has a name."""
    if "$ref" in schema:
        name = html.escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#type-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_kind(option) for option in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}" if "items" in schema else "list"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties']) or 'anything'}"
    if "enum" in schema:
        return " ".join(_code(str(value)) for value in schema["enum"])
    return html.escape(str(schema.get("format") or schema.get("type") or "anything"))


def _bounds(schema: dict[str, Any]) -> str:
    for option in schema.get("anyOf", ()):
        if option.get("type") != "null":
            return _bounds(option)
    words = []
    if "minimum" in schema:
        words.append(f"{schema['minimum']:,} to {schema['maximum']:,}")
    if "maxLength" in schema:
        words.append(f"{schema.get('minLength', 0):,} to {schema['maxLength']:,} characters")
    elif "pattern" in schema:
        words.append(_code(schema["pattern"]))
    if "maxItems" in schema:
        words.append(f"{schema.get('minItems', 0):,} to {schema['maxItems']:,} items")
    return ", ".join(words)


def _default(schema: dict[str, Any]) -> str:
    return _code(json.dumps(schema["default"])) if "default" in schema else ""


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    top = "".join(f"<th>{head}</th>" for head in heads)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def _marked(text: str) -> str:
    """Return escaped text, with code in backquotes marked up."""
    parts = text.replace("``", "`").split("`")
    return "".join(_code(part) if i % 2 else html.escape(part) for i, part in enumerate(parts))


def _code(text: str) -> str:
    return f"<code>{html.escape(text)}</code>"
