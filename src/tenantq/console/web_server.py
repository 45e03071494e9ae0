"""The console in a browser, behind a login with a tenantq credential.

Each login creates a session with the credential that the user typed. The credential stays in the memory of this process and in
the environment of the session's console processes. It is never in a URL, a cookie or a log line.
"""

import asyncio
import html
import logging
import secrets
import shlex
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import textual_serve
from aiohttp import web
from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from tenantq.client import NO_RETRIES, AsyncClient, Tls
from tenantq.errors import TenantqError, Unauthenticated
from tenantq.runtime.clock import Clock

log = logging.getLogger("tenantq.console")

SESSIONS_MAX: Final = 64
CONSOLES_MAX: Final = 16
"""Each console is a process."""
SESSION_MS: Final = 8 * 3_600_000
_COOKIE: Final = "tenantq_console"
_FORM_BYTES_MAX: Final = 32_768
_LOGINS_AT_ONCE: Final = 4
_REFUSAL_S: Final = 1.0  # guesses take this long
_STOP_S: Final = 5
_SIZE_MAX: Final = 1_000  # columns and rows
_PAGES: Final = Path(__file__).parent / "web_pages"
_STATIC: Final = Path(textual_serve.__file__).parent / "static"
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; img-src 'self' data:; "
        "connect-src 'self' {websocket}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class WebSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the console is served, and the server that it shows."""

    origin: str  # the scheme, host and port that browsers use
    url: str
    tenant: str | None
    ca_file: str | None
    refresh_ms: int
    sessions_max: int = SESSIONS_MAX
    consoles_max: int = CONSOLES_MAX
    session_ms: int = SESSION_MS


class WebSession:
    """A logged-in user: the credential and the open consoles."""

    def __init__(self, token: str, principal: str, ends_ms: int) -> None:
        self.token, self.principal, self.ends_ms = token, principal, ends_ms
        self.consoles: set[ConsoleProcess] = set()


class ConsoleProcess(AppService):
    """A console with the credential of a session. The operator's own settings do not reach it."""

    def __init__(
        self, settings: WebSettings, session: WebSession, connection: web.WebSocketResponse, downloads: DownloadManager
    ) -> None:
        super().__init__(
            f"exec {shlex.join([sys.executable, '-m', 'tenantq.console.web_session'])}",  # without a shell in between
            write_bytes=connection.send_bytes,
            write_str=connection.send_str,
            close=self._close_socket,
            download_manager=downloads,
        )
        self.connection = connection
        self._settings, self._session = settings, session

    async def _close_socket(self) -> None:
        await self.connection.close()

    def _build_environment(self, width: int = 80, height: int = 24) -> dict[str, str]:
        found = super()._build_environment(width, height)
        own = {name: value for name, value in found.items() if not name.startswith("TENANTQ_")}
        settings = self._settings
        given = {
            "URL": settings.url,
            "TOKEN": self._session.token,
            "TENANT": settings.tenant,
            "CA_FILE": settings.ca_file,
            "REFRESH_MS": str(settings.refresh_ms),
        }
        return own | {f"TENANTQ_{name}": value for name, value in given.items() if value is not None}

    async def end(self) -> None:
        """End the process, by force if it does not quit."""
        process = self._process
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self.stop()
                if process is not None:
                    await process.wait()
        if process is not None and process.returncode is None:
            process.kill()


class ConsoleWeb:
    """Serves pages, logins and consoles."""

    def __init__(self, settings: WebSettings, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._sessions: dict[str, WebSession] = {}
        self._downloads = DownloadManager()
        self._logins = asyncio.Semaphore(_LOGINS_AT_ONCE)

    def application(self) -> web.Application:
        """Return the application."""
        app = web.Application(middlewares=[self._guard], client_max_size=_FORM_BYTES_MAX)
        app.router.add_get("/", self._index)
        app.router.add_post("/login", self._login)
        app.router.add_post("/logout", self._logout)
        app.router.add_get("/ws", self._console)
        app.router.add_get("/download/{key}", self._download)
        app.router.add_static("/static", _STATIC)
        app.router.add_static("/pages", _PAGES)
        app.on_shutdown.append(self._end_all)
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse other hosts and cross-site requests; add security headers."""
        origin = self._settings.origin
        if f"{self._scheme}://{request.host}" != origin:
            raise web.HTTPMisdirectedRequest(text="unknown host")
        changes = request.method == "POST" or request.path == "/ws"
        if changes and request.headers.get("Origin") != origin:
            raise web.HTTPForbidden(text="requests of other origins are refused")
        response = await handler(request)
        if not response.prepared:
            for name, value in _HEADERS.items():
                response.headers[name] = value.replace("{websocket}", self._websocket)
        return response

    @property
    def _scheme(self) -> str:
        return self._settings.origin.partition(":")[0]

    @property
    def _websocket(self) -> str:
        return f"ws{self._settings.origin.removeprefix('http')}/ws"

    def _session(self, request: web.Request) -> WebSession | None:
        """Return the session of a request, unless it has ended."""
        for id, one in list(self._sessions.items()):
            if one.ends_ms <= self._clock.monotonic_ms():
                del self._sessions[id]
        return self._sessions.get(request.cookies.get(_COOKIE, ""))

    async def _index(self, request: web.Request) -> web.Response:
        session = self._session(request)
        if session is None:
            return _page("login.html", url=self._settings.url, problem="")
        return _page("console.html", websocket=self._websocket, principal=session.principal)

    async def _login(self, request: web.Request) -> web.StreamResponse:
        """Check the credential with the server, and start a session."""
        token = str((await request.post()).get("token", "")).strip()
        problem, principal = "", ""
        async with self._logins:
            try:
                principal = await self._principal(token)
            except Unauthenticated:
                problem = "The server does not accept this token."
                await asyncio.sleep(_REFUSAL_S)
            except TenantqError as error:
                problem = f"{error.message} [{error.code}]"
        self._session(request)  # forgets sessions that have ended
        if not problem and len(self._sessions) >= self._settings.sessions_max:
            problem = "Too many sessions. Try again later."
        if problem:
            log.warning("console login refused from %s", request.remote)
            return _page("login.html", 401, url=self._settings.url, problem=problem)
        id = secrets.token_urlsafe(32)
        ends_ms = self._clock.monotonic_ms() + self._settings.session_ms
        self._sessions[id] = WebSession(token, principal, ends_ms)
        log.info("console login of %s from %s", principal, request.remote)
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(_COOKIE, id, httponly=True, samesite="Strict", secure=self._scheme == "https")
        return response

    async def _principal(self, token: str) -> str:
        if not token or not token.isascii() or not token.isprintable():
            raise Unauthenticated("the token is not valid")
        settings = self._settings
        async with AsyncClient(settings.url, token, retries=NO_RETRIES, tls=Tls(ca_file=settings.ca_file)) as client:
            return (await client.whoami()).principal

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        session = self._sessions.pop(request.cookies.get(_COOKIE, ""), None)
        for console in list(session.consoles) if session is not None else ():
            await console.connection.close()
        response = web.Response(status=303, headers={"Location": "/"})
        response.del_cookie(_COOKIE)
        return response

    async def _console(self, request: web.Request) -> web.StreamResponse:
        """Run a console until the browser leaves, the user quits, or the session ends."""
        session = self._session(request)
        if session is None:
            raise web.HTTPUnauthorized(text="log in first")
        if sum(len(one.consoles) for one in self._sessions.values()) >= self._settings.consoles_max:
            raise web.HTTPServiceUnavailable(text="too many open consoles")
        connection = web.WebSocketResponse(heartbeat=15, max_msg_size=_FORM_BYTES_MAX)
        console = ConsoleProcess(self._settings, session, connection, self._downloads)
        session.consoles.add(console)
        left_s = (session.ends_ms - self._clock.monotonic_ms()) / 1_000
        end = asyncio.get_running_loop().call_later(left_s, lambda: asyncio.ensure_future(connection.close()))
        try:
            await connection.prepare(request)
            await console.start(_size(request, "width", 80), _size(request, "height", 24))
            async for message in connection:
                if message.type is web.WSMsgType.TEXT:
                    await _pass_on(console, message.data)
        finally:
            end.cancel()
            session.consoles.discard(console)
            await console.end()
        return connection

    async def _download(self, request: web.Request) -> web.StreamResponse:
        """Send a report that a console of this session delivers. The key works once."""
        session, key = self._session(request), request.match_info["key"]
        try:
            found = await self._downloads.get_download_metadata(key)
        except KeyError:
            raise web.HTTPNotFound(text="unknown download") from None
        if session is None or found.app_service not in session.consoles:
            raise web.HTTPNotFound(text="unknown download")
        name = found.file_name.replace('"', "")
        headers = {
            "Content-Disposition": f'attachment; filename="{name}"',
            "Content-Type": "text/markdown; charset=utf-8",
        }
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        async for chunk in self._downloads.download(key):
            await response.write(chunk)
        await response.write_eof()
        return response

    async def _end_all(self, _: web.Application) -> None:
        for session in self._sessions.values():
            for console in list(session.consoles):
                await console.connection.close()


async def _pass_on(console: ConsoleProcess, text: str) -> None:
    """Pass a message of the browser on to the console. Ignores everything except keys, sizes, pings and focus."""
    try:
        match msgspec.json.decode(text):
            case ["stdin", str() as typed]:
                await console.send_bytes(typed.encode())
            case ["resize", {"width": int() as width, "height": int() as height}]:
                await console.set_terminal_size(_bounded(width), _bounded(height))
            case ["ping", sent]:
                await console.connection.send_json(["pong", sent])
            case ["focus", *_]:
                await console.focus()
            case ["blur", *_]:
                await console.blur()
    except (msgspec.DecodeError, UnicodeEncodeError):
        await console.connection.close(code=1008)


def _page(name: str, status: int = 200, **values: str) -> web.Response:
    text = (_PAGES / name).read_text()
    for field, value in values.items():
        text = text.replace(f"{{{{{field}}}}}", html.escape(value))
    return web.Response(text=text, status=status, content_type="text/html")


def _size(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, "")
    return _bounded(int(text)) if text.isascii() and text.isdigit() and len(text) <= 4 else default


def _bounded(cells: int) -> int:
    return max(1, min(_SIZE_MAX, cells))


async def serve_console(settings: WebSettings, clock: Clock, sock: socket.socket, stopped: asyncio.Event) -> None:
    """Serve the console on a listening socket until ``stopped``."""
    runner = web.AppRunner(ConsoleWeb(settings, clock).application(), access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, sock).start()
        await stopped.wait()
    finally:
        await runner.cleanup()
