"""OpenAPI 3.1, generated from the route table and from the types that decode and encode."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect

from tenantq.domain.names import QueueName, TemplateName, TenantName
from tenantq.domain.schema_rules import Schema
from tenantq.domain.validation import plain_schema
from tenantq.http.route import Empty, Route
from tenantq.service.residency import CONTENT_ACTIONS
from tenantq.wire.base_types import Problem
from tenantq.wire.messages import MessageId


def _schema(kind: Any) -> Schema:
    return plain_schema(msgspec.json.schema(kind))  # type: ignore[no-any-return]  # of a dict it returns one


_REF: Final = "#/components/schemas/{name}"
_ID: Final[Schema] = {"type": "string", "minLength": 1}
_TAGS: Final = {
    "messages": "Add, lease, settle and read messages.",
    "queues": "Manage queues.",
    "tenants": "Manage tenants; usage and audit trail.",
    "templates": "Templates of queues and settings.",
    "access": "API keys, grants and revocations.",
    "operations": "Health, readiness, metrics, and this description.",
}
PROBLEMS: Final = {
    400: "Malformed HTTP or JSON",
    401: "The credential is missing or invalid",
    403: "The credential does not allow this action",
    404: "The path, tenant, queue, message or result does not exist",
    409: "Conflict: the name or key is in use, the queue is being deleted, or the lease is lost",
    410: "The tenant's data keys were destroyed; its encrypted data is unreadable",
    413: "The body, batch or message is over its limit",
    415: "The content type is not application/json, or the content encoding is not supported",
    421: "The tenant does not allow the region of this server",
    422: "A field or parameter is unknown, malformed or out of range; the detail names it",
    429: "A rate limit or quota is reached. Nothing was changed",
    500: "Internal server error",
    503: "The server cannot do this now",
}
_PARAMETERS: Final[dict[str, tuple[Schema, str]]] = {
    "tenant": (_schema(TenantName), "The tenant's name."),
    "queue": (_schema(QueueName), "The queue's name."),
    "id": (_schema(MessageId), "The message's ID."),
    "task": (_ID, "The redrive's ID."),
    "snapshot": (_ID, "The snapshot's ID."),
    "key_id": (_ID, "The key's ID."),
    "template": (_schema(TemplateName), "The template's name."),
    "backup": (_ID, "The backup's name."),
    "principal": (
        {"type": "string", "pattern": r"^(key|jwt|cert):[^\u0000]+$"},
        "The principal: `key:<id>`, `jwt:<subject>` or `cert:<name>`.",
    ),
}
_MAY_BE_ERASED: Final = {"add", "poll", "ack", "peek", "get", "result", "rotate_keys", "rewrap_keys"}  # they need keys
_DONE: Final = {
    200: "Done",
    201: "Created",
    202: "Started; it completes when all leases have settled",
    204: "Done",
    503: "Not ready",
}


def openapi(routes: Iterable[Route]) -> Schema:
    """Return the description of ``routes`` as a JSON-ready mapping."""
    routes = tuple(routes)
    schemas = _Schemas(routes)
    paths: dict[str, Schema] = {}
    taken: set[str] = set()
    for route in routes:
        name = route.handler.__name__
        name += "_own" if name in taken else ""  # the same call in the credential's own tenant
        taken.add(name)
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(name, route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tenantq",
            "version": importlib.metadata.version("tenantq"),
            "summary": "A durable work queue for software that serves many tenants.",
            "description": (
                "Times are in milliseconds: durations end in `_ms`, wall-clock times in `_at` or `_until`. Bodies of messages are "
                "text in `body`, or base64 in `body_base64`. Errors are `application/problem+json` with a stable `code`. "
                "A path without a tenant means the credential's own."
            ),
            "license": {"name": "See LICENSE"},
        },
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "headers": _headers(),
            "responses": {f"Problem{status}": _problem(status, text) for status, text in PROBLEMS.items()}
            | {"Problem": _problem(0, "Any other error, such as 405, 408, 414, 417, 431 or 505")},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key or a JSON web token."}
            },
        },
    }


class _Schemas:
    """The schemas of all types in the route table, and references to them."""

    def __init__(self, routes: tuple[Route, ...]) -> None:
        kinds: list[Any] = [Problem]
        for route in routes:
            for kind in (route.describes or route.request, route.reply, route.query):
                if kind is not None and kind not in kinds:
                    kinds.append(kind)
        references, components = msgspec.json.schema_components(kinds, ref_template=_REF)
        self._references = list(zip(kinds, references, strict=True))
        self._queries = {kind.__name__ for kind in (route.query for route in routes) if kind is not None}
        structs = {one.__name__: one for kind in kinds for one in _structs(inspect.type_info(kind))}
        self._all = {name: _with_rules(structs.get(name), plain_schema(schema)) for name, schema in components.items()}
        self.components = {name: schema for name, schema in sorted(self._all.items()) if name not in self._queries}

    def of(self, kind: Any) -> Schema:
        """Return a schema, or a reference to it."""
        return next(schema for known, schema in self._references if known == kind)

    def may_be_empty(self, kind: Any) -> bool:
        """Return whether an object without fields is valid."""
        schema = self._all.get(kind.__name__, {})
        return not schema.get("required") and "if" not in schema

    def fields(self, kind: type[msgspec.Struct]) -> dict[str, Schema]:
        """Return the schemas of a type's fields."""
        return self._all[kind.__name__]["properties"]  # type: ignore[no-any-return]  # JSON


def _structs(info: Any) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs in a type."""
    if isinstance(info, inspect.StructType):
        yield info.cls
        for field in info.fields:
            yield from _structs(field.type)
    for name in ("type", "item_type", "value_type"):
        if isinstance(inner := getattr(info, name, None), inspect.Type):
            yield from _structs(inner)
    if isinstance(info, inspect.UnionType):
        for option in info.types:
            yield from _structs(option)


def _with_rules(struct: type[msgspec.Struct] | None, schema: Schema) -> Schema:
    """Return the schema of a struct with the rules between its fields."""
    rules: Schema = getattr(struct, "json_rules", {})
    for field in rules.get("required", ()):  # the service requires it, with an error that explains why
        schema["properties"][field].pop("default", None)
    return schema | rules


def _operation(name: str, route: Route, schemas: _Schemas) -> Schema:
    operation: Schema = {
        "operationId": name,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [*_path_parameters(route), *_query_parameters(route, schemas)],
        "responses": _responses(route, schemas),
    }
    if route.action:
        operation["x-tenantq-action"] = route.action
    if route.request is not Empty:
        operation["requestBody"] = {
            "required": route.default is None or not schemas.may_be_empty(route.describes or route.request),
            "content": {"application/json": {"schema": schemas.of(route.describes or route.request)}},
        }
    if not route.secured:
        operation["security"] = []
    return operation


def _path_parameters(route: Route) -> list[Schema]:
    found = []
    for name in (part[1:-1] for part in route.path.split("/") if part.startswith("{")):
        schema, text = _PARAMETERS[name]
        found.append({"name": name, "in": "path", "required": True, "schema": schema, "description": text})
    return found


def _query_parameters(route: Route, schemas: _Schemas) -> list[Schema]:
    if route.query is None:
        return []
    fields = schemas.fields(route.query).items()
    return [{"name": name, "in": "query", "required": False, "schema": _without_null(one)} for name, one in fields]


def _without_null(schema: Schema) -> Schema:
    """Return the schema of a parameter. It is omitted rather than null."""
    if "enum" in schema:
        return {"type": "string", "enum": [value for value in schema["enum"] if value is not None]}
    return next((option for option in schema.get("anyOf", ()) if option.get("type") != "null"), schema)


def _responses(route: Route, schemas: _Schemas) -> Schema:
    responses: Schema = {}
    for status in route.statuses:
        response: Schema = {"description": _DONE[status], "headers": _header_references("X-Request-Id")}
        if status != 204:
            schema = schemas.of(route.reply) if route.reply is not None else {"type": "string"}
            if route.reply_kind == "application/octet-stream":
                schema = {"type": "string", "format": "binary"}
            response["content"] = {route.reply_kind: {"schema": schema}}
            response["content"] |= {kind: {"schema": {"type": "string"}} for kind in route.kinds}
        responses[str(status)] = response
    if route.secured or route.request is not Empty:
        expected = [400, *((401, 403) if route.secured else ()), 404, 422, 429, 500, 503]
        if route.request is not Empty:
            expected += [413, 415]
        if route.conflicts:
            expected.append(409)
        if route.action in CONTENT_ACTIONS:
            expected.append(421)
        if route.action in _MAY_BE_ERASED:
            expected += [409, 410]
        for status in sorted(expected):
            responses.setdefault(str(status), {"$ref": f"#/components/responses/Problem{status}"})
    responses["default"] = {"$ref": "#/components/responses/Problem"}
    return responses


def _problem(status: int, text: str) -> Schema:
    names = ["X-Request-Id"]
    if status == 401:
        names.append("WWW-Authenticate")
    if status in {429, 503}:
        names.append("Retry-After")
    if status == 429:
        names += ["X-RateLimit-Limit", "X-RateLimit-Remaining"]
    return {
        "description": text,
        "headers": _header_references(*names),
        "content": {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}},
    }


def _header_references(*names: str) -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _headers() -> Schema:
    number: Schema = {"type": "integer"}
    text: Schema = {"type": "string"}
    return {
        "X-Request-Id": {
            "description": "The request ID: the client's, or a new one.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 128},
            "required": True,
        },
        "Retry-After": {"description": "Seconds until a retry may succeed.", "schema": {**number, "minimum": 1}},
        "WWW-Authenticate": {"description": "How to authenticate.", "schema": text},
        "X-RateLimit-Limit": {"description": "The limit that was reached.", "schema": number},
        "X-RateLimit-Remaining": {"description": "The rest of it.", "schema": number},
    }
