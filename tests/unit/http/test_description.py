"""The OpenAPI description and its page: complete, true to the types, and readable offline."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

from docs import generate
from tenantq.domain import access
from tenantq.domain.config import QueueConfig, TenantChanges
from tenantq.domain.message import NewMessage, check_message
from tenantq.errors import Invalid
from tenantq.http.description import Description
from tenantq.http.openapi import openapi
from tenantq.http.routes import ROUTES

if TYPE_CHECKING:
    import msgspec


DOCUMENT = json.loads(json.dumps(openapi(ROUTES)))
GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "http.md").read_text()


def test_every_route_is_described_once() -> None:
    """With a unique ID, a summary, its action and the expected replies."""
    described = {
        (method.upper(), path): operation
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    }
    assert set(described) == {(route.method, route.path) for route in ROUTES}
    ids = [operation["operationId"] for operation in described.values()]
    assert len(set(ids)) == len(ids)
    for route in ROUTES:
        operation = described[route.method, route.path]
        assert operation["summary"]
        assert set(map(str, route.statuses)) < set(operation["responses"])
        if route.secured:
            assert {"401", "403", "429", "503"} < set(operation["responses"])
            assert not route.action or route.action in access.ACTIONS
        else:
            assert operation["security"] == []


def test_every_reference_resolves() -> None:
    """And every schema is used."""
    text = json.dumps(DOCUMENT)
    names = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert names == set(DOCUMENT["components"]["schemas"])
    for kind, name in re.findall(r'"#/components/(\w+)/([\w-]+)"', text):
        assert name in DOCUMENT["components"][kind]


def test_every_default_matches_its_schema() -> None:
    """Client generators rely on both."""
    for name, schema in DOCUMENT["components"]["schemas"].items():
        for field, described in schema.get("properties", {}).items():
            if "default" in described:
                checker = jsonschema.Draft202012Validator({**described, "components": DOCUMENT["components"]})
                assert checker.is_valid(described["default"]), (name, field)


def test_described_ranges_match_the_service() -> None:
    """Values at the ends are accepted, and values beyond them refused."""
    for field, described in DOCUMENT["components"]["schemas"]["WireMessage"]["properties"].items():
        bounds = described.get("anyOf", [described])[0]
        if "maximum" in bounds:
            check_message(NewMessage(body=b"", **{field: bounds["minimum"]}))
            check_message(NewMessage(body=b"", **{field: bounds["maximum"]}))
            with pytest.raises(Invalid, match=field):
                check_message(NewMessage(body=b"", **{field: bounds["maximum"] + 1}))


@pytest.mark.parametrize("kind", [QueueConfig, TenantChanges])
def test_every_setting_is_described(kind: type[msgspec.Struct]) -> None:
    """None is missing from the PUT body."""
    assert set(DOCUMENT["components"]["schemas"][kind.__name__]["properties"]) == set(kind.__struct_fields__)


class _Page(html.parser.HTMLParser):
    """Collects what a browser would load, and whether all tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in {"script", "link", "img", "iframe"} or "src" in values:
            self.loaded.append(tag)
        if tag == "a":
            self.links.add(values["href"] or "")
        if "id" in values:
            self.ids.add(values["id"] or "")
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_self_contained() -> None:
    """It has no script, image or external URL, and every link leads to a place on it."""
    text = Description(ROUTES).page.body.decode()
    page = _Page()
    page.feed(text)
    assert page.loaded == []
    assert page.open == []
    assert "http://" not in text
    assert "https://" not in text
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    assert {link[1:] for link in page.links if link.startswith("#")} <= page.ids
    assert {link for link in page.links if not link.startswith("#")} == {"openapi.json"}
    for route in ROUTES:
        assert f"<code>{route.path}</code>" in text


def test_the_reference_has_every_route() -> None:
    """Its table is generated from the route table, and up to date."""
    assert generate.routes("").strip() in GUIDE
