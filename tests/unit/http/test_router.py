"""Routing: every path template is found, nothing else is, and the cache is bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenantq.http.problem import HttpError
from tenantq.http.router import REMEMBERED_PATHS_MAX, Router
from tenantq.http.routes import ROUTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenantq.http.route import Route

ROUTER = Router(ROUTES)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_is_found_by_its_path(route: Route) -> None:
    """With the names at their positions."""
    path = route.path
    for name, value in {"tenant": "acme", "queue": "mails"}.items():
        path = path.replace(f"{{{name}}}", value)
    for name in ("id", "task", "snapshot", "key_id", "principal", "backup", "template"):
        path = path.replace(f"{{{name}}}", "x%3Ay")
    match = ROUTER.find(route.method.encode(), path.encode())
    assert match.route is route
    assert match.tenant == ("acme" if "{tenant}" in route.path else None)
    assert match.queue == ("mails" if "{queue}" in route.path else "")
    assert match.name == ("x:y" if "x%3Ay" in path else "")
    assert ROUTER.find(route.method.encode(), path.encode()) is match  # cached


def test_only_routes_of_a_tenant_have_the_scope_tenant() -> None:
    """They name the tenant, or serve the credential's own tenant with the handler of a route that names it."""
    named = {route.handler for route in ROUTES if "{tenant}" in route.path}
    for route in ROUTES:
        assert (route.scope == "tenant") == ("{tenant}" in route.path or route.handler in named), route.path


def test_head_uses_the_get_route() -> None:
    """And no other route."""
    route = ROUTER.find(b"HEAD", b"/healthz").route
    assert route is not None
    assert route.method == "GET"
    with pytest.raises(HttpError) as refused:
        ROUTER.find(b"HEAD", b"/v1/poll")
    assert refused.value.status == 405


@given(st.lists(st.sampled_from(["v1", "tenants", "queues", "poll", "a", "", "..", ".", "messages"]), max_size=8))
def test_a_path_is_found_or_refused(parts: list[str]) -> None:
    """For any path; a found route has as many segments as the path."""
    path = "/" + "/".join(parts)
    try:
        match = ROUTER.find(b"POST", path.encode())
    except HttpError as refusal:
        assert refusal.status in {404, 405}  # noqa: PT017  # either is right here
    else:
        assert match.route is not None
        assert match.route.path.count("/") == path.count("/")


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_names_survive_percent_encoding(name: str) -> None:
    """Each is decoded exactly once."""
    escaped = "".join(f"%{byte:02X}" for byte in name.encode())
    assert ROUTER.find(b"POST", f"/v1/queues/{escaped}/poll".encode()).queue == name


def test_the_path_cache_is_bounded() -> None:
    """An attacker cannot fill the memory with names, and long paths are not cached."""
    router = Router(ROUTES)
    for i in range(REMEMBERED_PATHS_MAX * 2 + 10):
        router.find(b"POST", b"/v1/queues/q%d/poll" % i)
    assert sum(len(paths) for paths in router._remembered.values()) <= REMEMBERED_PATHS_MAX
    router.find(b"POST", b"/v1/queues/" + b"q" * 1_000 + b"/poll")
    assert all(len(path) <= 256 for paths in router._remembered.values() for path in paths)


def _structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    for one in msgspec.inspect.multi_type_info([kind]):
        waiting = [one]
        while waiting:
            info = waiting.pop()
            if isinstance(info, msgspec.inspect.StructType):
                yield info.cls
                waiting += [field.type for field in info.fields]
            waiting += [getattr(info, name) for name in ("type", "item_type", "value_type") if hasattr(info, name)]
            waiting += getattr(info, "types", ())


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_requests_encode_without_defaults(route: Route) -> None:
    """The check for duplicate keys compares a body with its request as encoded again."""
    for kind in _structs_in(route.request):
        assert kind.__struct_config__.omit_defaults or not kind.__struct_fields__, kind
