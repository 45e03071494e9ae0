"""The console in a browser: who can log in, with which credential, and what another site cannot do."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from tenantq import Client
from tenantq.console.web_server import WebSettings, serve_console
from tenantq.runtime.clock import SystemClock
from tests.acceptance.command import ADMIN_TOKEN, COMMAND, SECONDS_MAX, read_until
from tests.pipeline.chromium import Chromium, PageActivity
from tests.processes import alive, descendants

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from tests.acceptance.command import Served

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.fixture(scope="module")
def token(scenario_served: Served) -> str:
    """Create a tenant with a queue, and return the token of its operator."""
    with Client(scenario_served.url, token=ADMIN_TOKEN) as admin:
        tenant = admin.tenant("browser-tenant")
        tenant.configure()
        tenant.queue("mail").add("hello")
        admin.tenant("hidden-tenant").configure()
        return tenant.create_key("browser", role="tenant-admin").token


@contextlib.asynccontextmanager
async def served(url: str, **bounds: int) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the console in this process, and yield a browser without cookies."""
    sock = socket.create_server(("127.0.0.1", 0))
    origin = f"http://127.0.0.1:{sock.getsockname()[1]}"
    settings = WebSettings(origin=origin, url=url, tenant=None, ca_file=None, refresh_ms=1_000, **bounds)
    stopped = asyncio.Event()
    serving = asyncio.create_task(serve_console(settings, SystemClock(), sock, stopped))
    try:
        async with httpx.AsyncClient(base_url=origin, headers={"Origin": origin}, timeout=30) as browser:
            yield browser
    finally:
        stopped.set()
        await serving


async def test_session_needs_a_credential_of_the_server(scenario_served: Served, token: str) -> None:
    """The cookie is not the token, is hidden from scripts, and is not sent by other sites."""
    async with served(scenario_served.url) as browser:
        page = await browser.get("/")
        assert "Log in" in page.text
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        for wrong in ("", token[:-1]):
            refused = await browser.post("/login", data={"token": wrong})
            assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
            assert "does not accept this token" in refused.text
        assert (await browser.get("/ws", headers=UPGRADE)).status_code == 401
        done = await browser.post("/login", data={"token": token})
        cookie = done.headers["set-cookie"]
        assert (done.status_code, "HttpOnly" in cookie, "SameSite=Strict" in cookie) == (303, True, True)
        assert token not in cookie
        page = await browser.get("/")
        assert "textual-terminal" in page.text
        assert token not in page.text
        assert (await browser.post("/logout")).status_code == 303
        assert "Log in" in (await browser.get("/")).text


async def test_another_site_can_neither_log_in_nor_connect(scenario_served: Served, token: str) -> None:
    """Covers a wrong or missing origin, and a name that resolves to this machine."""
    async with served(scenario_served.url) as browser:
        assert (await browser.post("/login", data={"token": token})).status_code == 303
        for origin in ("https://evil.example", "null", ""):
            headers = {"Origin": origin}
            assert (await browser.post("/login", data={"token": token}, headers=headers)).status_code == 403
            assert (await browser.post("/logout", headers=headers)).status_code == 403
            assert (await browser.get("/ws", headers=UPGRADE | headers)).status_code == 403
        assert (await browser.get("/", headers={"Host": "evil.example"})).status_code == 421
        assert (await browser.get("/download/unknown")).status_code == 404


async def test_sessions_and_consoles_are_limited(scenario_served: Served, token: str) -> None:
    """More are refused, and a session expires."""
    async with served(scenario_served.url, sessions_max=1, consoles_max=0) as browser:
        assert (await browser.post("/login", data={"token": token})).status_code == 303
        assert (await browser.get("/ws", headers=UPGRADE)).status_code == 503
        refused = await browser.post("/login", data={"token": token})
        assert (refused.status_code, "Too many sessions" in refused.text) == (401, True)
        assert (await browser.post("/login", data={"token": "x" * 100_000})).status_code == 413
    async with served(scenario_served.url, session_ms=0) as browser:
        assert (await browser.post("/login", data={"token": token})).status_code == 303
        assert "Log in" in (await browser.get("/")).text


@contextlib.contextmanager
def web_command(server: Served, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run ``tenantq console --web`` as the platform administrator."""
    process = subprocess.Popen(
        [COMMAND, "console", "--web", "127.0.0.1:0", *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=server.environment(),
    )  # fmt: skip
    try:
        yield read_until(process, "console on ").split()[-1], process
    finally:
        process.kill()
        process.communicate()


def test_browser_shows_the_console_of_its_user(scenario_served: Served, token: str, tmp_path: Path) -> None:
    """It uses the user's credential, loads nothing from elsewhere, and no log has the token."""
    with web_command(scenario_served) as (origin, process), Chromium() as browser:
        browser.call("Emulation.setFocusEmulationEnabled", enabled=True)
        seen = browser.open(origin, 1200, height=700)
        browser.read(f"document.querySelector('#token').value = {token!r}")
        browser.read("document.querySelector('button').click()")
        _until(browser, lambda: b"browser-tenant" in seen.received and b"mail" in seen.received, seen)
        assert b"hidden-tenant" not in seen.received
        browser.save_screenshot(tmp_path / "console.png")
        browser.read("document.querySelector('textarea').focus()")
        browser.read("window.open = (url) => { window.opened = url }")
        _press(browser, "h", 72)
        _until(browser, lambda: b"messages added" in seen.received, seen)
        _press(browser, "s", 83)
        _until(browser, lambda: bool(browser.read("window.opened || ''")), seen)
        assert browser.read("fetch(window.opened, {credentials: 'omit'}).then(one => one.status)") == 404
        assert "# Usage of browser-tenant" in browser.read("fetch(window.opened).then(one => one.text())")
        _press(browser, "q", 81)
        _until(browser, lambda: bool(browser.read("document.body.classList.contains('-closed')")), seen)
        assert {re.match(r"https?://[^/]+|data:", one)[0] for one in seen.requests} <= {origin, "data:"}  # type: ignore[index]
        assert token not in "".join([*seen.requests, *seen.complaints])
        assert not [one for one in seen.complaints if "Content Security Policy" in one]
        seen = browser.open(origin, 1200, height=700)  # the session is still open
        _until(browser, lambda: b"browser-tenant" in seen.received, seen)
        consoles = descendants(process.pid)
        assert consoles
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0
        assert not alive(consoles)
        assert token not in output


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--web", "0.0.0.0:0"), "only https is allowed"),
        (("--web", "127.0.0.1:0", "--web-origin", "http://console.example"), "only https is allowed"),
        (("--web", "nonsense"), "is not HOST:PORT"),
    ],
)
def test_tokens_are_only_sent_encrypted(scenario_served: Served, options: tuple[str, ...], text: str) -> None:
    """Other machines reach it only through a TLS proxy."""
    done = scenario_served.call("console", *options)
    assert (done.code, text in done.err) == (2, True), done


def _press(browser: Chromium, key: str, code: int) -> None:
    common = {"key": key, "windowsVirtualKeyCode": code}
    browser.call("Input.dispatchKeyEvent", type="keyDown", text=key, **common)
    browser.call("Input.dispatchKeyEvent", type="keyUp", **common)


def _until(browser: Chromium, condition: Callable[[], bool], seen: PageActivity) -> None:
    late = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < late, (seen.received[-2_000:], seen.complaints)
        time.sleep(0.05)
        browser.call("Browser.getVersion")  # reads events in the meantime, also while the page changes
