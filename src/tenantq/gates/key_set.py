"""Sources of the keys that verify tokens: a file or a URL, read again while the server runs.

``generation`` grows whenever the keys change: what was verified under an older one has to be verified again.
"""

import asyncio
import hashlib
import logging
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPMessage
from pathlib import Path
from typing import IO, Final, Protocol

from tenantq.domain.urls import check_secure_url
from tenantq.errors import Invalid, Unavailable
from tenantq.gates.verification_key import VerificationKey, parse_key_set
from tenantq.runtime.clock import Clock

log = logging.getLogger("tenantq")

DOCUMENT_BYTES_MAX: Final = 1 << 20
LOOK_EVERY_MS: Final = 1_000
RENEW_EVERY_MS: Final = 10_000
FETCH_TIMEOUT_S: Final = 5
_SETTLED_MS: Final = 2_000

Keys = tuple[VerificationKey, ...]


class VerificationKeySource(Protocol):
    """Keys that may change while they are used."""

    generation: int

    def look(self) -> None:
        """Apply a change, if it is time to check for one. Cheap; never waits for a network."""

    async def find(self, algorithm: str, key_id: str | None) -> list[VerificationKey]:
        """Return the keys that may have signed a token with this header. Raises Unavailable if no keys are known."""

    def close(self) -> None:
        """Release the source's resources."""


class _Held:
    """The keys of the last successful read, and its time."""

    def __init__(self, clock: Clock, stale_s: int) -> None:
        self.generation = 0
        self._clock = clock
        self._stale_ms = stale_s * 1_000
        self._keys: Keys | None = None
        self._good_at = 0  # monotonic
        self._complaint = ""

    def _adopt(self, keys: Keys, read_at: int) -> None:
        self._good_at = read_at
        self._complaint = ""
        if self._keys is None or {key.identity for key in keys} != {key.identity for key in self._keys}:
            self.generation += 1
            self._keys = keys

    def _complain(self, what: str, error: Exception) -> None:
        text = f"{what}: {error}"
        if text != self._complaint:
            log.warning("cannot read the token verification keys; using the last valid ones: %s", text)
            self._complaint = text

    def _drop_stale(self, now: int) -> None:
        if self._keys is not None and now - self._good_at >= self._stale_ms:
            if self._complaint:
                log.error("the token verification keys are stale; rejecting all tokens until they can be read")
            self.generation += 1
            self._keys = None

    def _fitting(self, algorithm: str, key_id: str | None) -> list[VerificationKey]:
        if self._keys is None:
            raise Unavailable("Tokens cannot be verified now: the keys that sign them cannot be read. Try again later.")
        fitting = [key for key in self._keys if algorithm in key.algorithms]
        if key_id is None:
            return fitting
        return [key for key in fitting if key.id == key_id] or [key for key in fitting if key.id is None]


class KeyFile(_Held):
    """Keys in a file, which is checked at most once per second and read again if it has changed."""

    def __init__(self, setting: str, path: Path, parse: Callable[[bytes], Keys], clock: Clock, *, stale_s: int) -> None:
        """Read the file. Raises Invalid that names the setting and the file."""
        super().__init__(clock, stale_s)
        self._setting = setting
        self._path = path
        self._parse = parse
        self._looked_at = clock.monotonic_ms()
        self._stamp: tuple[int, ...] = ()
        self._document = b""  # its hash
        try:
            self._read(self._looked_at)
        except Invalid as error:
            raise Invalid(f"{setting}: {path}: {error.message}") from error
        except (OSError, ValueError) as error:
            raise Invalid(f"{setting}: {path}: it cannot be read: {getattr(error, 'strerror', error)}") from error

    def look(self) -> None:
        """Read the file if it has changed."""
        now = self._clock.monotonic_ms()
        if now - self._looked_at < LOOK_EVERY_MS:
            return
        self._looked_at = now
        try:
            self._read(now)
        except (OSError, Invalid) as error:
            self._stamp = ()
            self._complain(self._setting, error)
            self._drop_stale(now)

    async def find(self, algorithm: str, key_id: str | None) -> list[VerificationKey]:
        """Return the keys that may have signed a token with this header."""
        self.look()
        return self._fitting(algorithm, key_id)

    def close(self) -> None:
        """Nothing is held open."""

    def _read(self, now: int) -> None:
        facts = self._path.stat()
        stamp = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
        if stamp == self._stamp:
            self._good_at = now
            return
        with self._path.open("rb") as file:
            document = file.read(DOCUMENT_BYTES_MAX + 1)
        if len(document) > DOCUMENT_BYTES_MAX:
            raise Invalid(f"it is larger than {DOCUMENT_BYTES_MAX} bytes")
        hash = hashlib.sha256(document).digest()
        if hash != self._document or self._keys is None:
            self._adopt(self._parse(document), now)
            self._document = hash
        self._good_at = now
        # A file written a moment ago may be written again within the same tick of its time stamp: read it once more.
        settled = facts.st_mtime_ns // 1_000_000 < self._clock.wall_ms() - _SETTLED_MS
        self._stamp = stamp if settled else ()


class KeyUrl(_Held):
    """Keys of a JWKS URL, fetched in a thread: on first use, every ``refresh_s``, and for an unknown key id."""

    def __init__(self, url: str, clock: Clock, *, refresh_s: int, stale_s: int) -> None:
        super().__init__(clock, stale_s)
        self._url = check_secure_url("jwks_url", url)
        self._refresh_ms = refresh_s * 1_000
        self._thread = ThreadPoolExecutor(1, "tenantq-key-set")
        self._closed = False
        self._fetch: Future[Keys | Exception] | None = None
        self._fetched_at = -RENEW_EVERY_MS  # when the last fetch began
        self._due_at: int | None = None  # None: on first use

    def look(self) -> None:
        """Apply fetched keys, and start the next fetch when it is due."""
        now = self._clock.monotonic_ms()
        if self._fetch is not None and self._fetch.done():
            self._apply_fetched(self._fetch, now)
        if self._due_at is not None and now >= self._due_at:
            self._begin(now)
            self._drop_stale(now)

    async def find(self, algorithm: str, key_id: str | None) -> list[VerificationKey]:
        """Return the keys that may have signed a token with this header. An unknown key ID may cause a new fetch."""
        self.look()
        if self._keys is None:
            await self._renew()
        found = self._fitting(algorithm, key_id)
        if not found and key_id is not None:
            await self._renew()
            found = self._fitting(algorithm, key_id)
        return found

    def close(self) -> None:
        """Start no further fetch. A fetch in progress ends by itself."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _renew(self) -> None:
        """Wait for a fetch: the current one, or a new one if the last is old enough."""
        if self._fetch is None:
            now = self._clock.monotonic_ms()
            if now - self._fetched_at < RENEW_EVERY_MS:
                return
            self._begin(now)
        if self._fetch is not None:
            # Several callers may wait for one fetch, and none of them may cancel it for the others.
            await asyncio.wait([asyncio.wrap_future(self._fetch)], timeout=2 * FETCH_TIMEOUT_S)
        self.look()

    def _begin(self, now: int) -> None:
        if self._fetch is None and not self._closed:
            self._fetched_at = now
            self._due_at = now + RENEW_EVERY_MS  # unless it succeeds
            self._fetch = self._thread.submit(_fetch, self._url)

    def _apply_fetched(self, fetch: Future[Keys | Exception], now: int) -> None:
        self._fetch = None
        fetched = Invalid("the fetch was cancelled") if fetch.cancelled() else fetch.result()
        if isinstance(fetched, Exception):
            self._complain("jwks_url", fetched)
            self._drop_stale(now)
        else:
            self._adopt(fetched, self._fetched_at)
            self._due_at = self._fetched_at + self._refresh_ms


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they could lead away from https, or to another host."""

    def redirect_request(
        self,
        req: urllib.request.Request,  # noqa: ARG002  # the signature is urllib's
        fp: IO[bytes],  # noqa: ARG002
        code: int,  # noqa: ARG002
        msg: str,  # noqa: ARG002
        headers: HTTPMessage,  # noqa: ARG002
        newurl: str,  # noqa: ARG002
    ) -> None:
        """Follow no redirect. The reply is then an error."""
        return


def _fetch(url: str) -> Keys | Exception:
    try:
        return parse_key_set(_download(url))
    except Exception as error:  # noqa: BLE001  # after any failure the current keys stay in use
        return error


def _download(url: str) -> bytes:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if url.startswith("http:"):
        handlers.append(urllib.request.ProxyHandler({}))  # only loopback is allowed without TLS: no proxy
    request = urllib.request.Request(url, headers={"Accept": "application/json"})  # noqa: S310  # checked by check_secure_url
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=FETCH_TIMEOUT_S) as answer:
            document: bytes = answer.read(DOCUMENT_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        with error:  # it holds the connection
            raise Invalid(f"the reply has status {error.code}") from None
    if len(document) > DOCUMENT_BYTES_MAX:
        raise Invalid(f"it is larger than {DOCUMENT_BYTES_MAX} bytes")
    return document
