"""The router: finds the route of a method and path, and the names in the path."""

from collections.abc import Iterable
from typing import Final

import msgspec

from tenantq.http.problem import HttpError, malformed
from tenantq.http.query import unescape
from tenantq.http.route import Route

REMEMBERED_PATHS_MAX: Final = 4_096
_REMEMBERED_PATH_BYTES_MAX: Final = 256
METHODS: Final = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE"))


class Match(msgspec.Struct, frozen=True):
    """A route and the names in the path."""

    route: Route | None
    tenant: str | None = None
    queue: str = ""
    name: str = ""


class _Node:
    __slots__ = ("allow", "children", "parameter", "routes")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node] = {}
        self.parameter: tuple[str, _Node] | None = None
        self.routes: dict[bytes, Route] = {}
        self.allow = b""


class Router:
    """A table of routes, searched segment by segment. Paths that were found are cached, up to a limit."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _Node()
        self._remembered: dict[bytes, dict[bytes, Match]] = {}
        self._remembered_count = 0
        for route in self.routes:
            self._insert(route)

    def _insert(self, route: Route) -> None:
        node = self._root
        for segment in route.path.encode().split(b"/")[1:]:
            if segment.startswith(b"{"):
                if node.parameter is None:
                    node.parameter = (segment[1:-1].decode(), _Node())
                assert node.parameter[0] == segment[1:-1].decode(), "all names of one path position must be equal"
                node = node.parameter[1]
            else:
                node = node.children.setdefault(segment, _Node())
        method = route.method.encode()
        assert method not in node.routes, f"{route.method} {route.path} is in the table twice"
        node.routes[method] = route
        allowed = sorted(node.routes)
        if b"GET" in node.routes:
            allowed.append(b"HEAD")
        node.allow = b", ".join(allowed)

    def find(self, method: bytes, path: bytes) -> Match:
        """Return the route of a request. Raises HttpError with 404 or 405."""
        if method == b"HEAD":
            method = b"GET"
        of_method = self._remembered.get(method)
        if of_method is not None:
            match = of_method.get(path)
            if match is not None:
                return match
        match = self._walk(method, path)
        if len(path) <= _REMEMBERED_PATH_BYTES_MAX:
            self._remember(method, path, match)
        return match

    def _remember(self, method: bytes, path: bytes, match: Match) -> None:
        if self._remembered_count >= REMEMBERED_PATHS_MAX:
            self._remembered.clear()
            self._remembered_count = 0
        self._remembered.setdefault(method, {})[path] = match
        self._remembered_count += 1

    def _walk(self, method: bytes, path: bytes) -> Match:
        node = self._root
        names: list[tuple[str, bytes]] = []
        for segment in path.split(b"/")[1:]:
            child = node.children.get(segment)
            if child is not None:
                node = child
            elif node.parameter is not None and segment:
                names.append((node.parameter[0], segment))
                node = node.parameter[1]
            else:
                raise _nothing_here()
        if not node.routes or not path.startswith(b"/"):
            raise _nothing_here()
        route = node.routes.get(method)
        if route is None:
            allowed = b"Allow: " + node.allow + b"\r\n"
            raise HttpError(405, "invalid", f"this path takes {node.allow.decode()}", headers=allowed)
        tenant, queue, name = None, "", ""
        for parameter, segment in names:
            text = _name(segment)
            if parameter == "tenant":
                tenant = text
            elif parameter == "queue":
                queue = text
            else:
                name = text
        return Match(route, tenant, queue, name)


def _nothing_here() -> HttpError:
    return HttpError(404, "not_found", "unknown path. GET /docs lists all paths.")


def _name(segment: bytes) -> str:
    if b"%" in segment:
        return unescape(segment)
    try:
        return segment.decode("ascii")
    except UnicodeDecodeError as error:
        raise malformed("path: characters beyond ASCII must be percent-encoded") from error
