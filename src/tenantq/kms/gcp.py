"""The provider ``gcp-kms``: symmetric keys of Google Cloud KMS, through google-cloud-kms (``pip install 'tenantq[gcp]'``).

A key is named ``projects/…/locations/…/keyRings/…/cryptoKeys/…``; Cloud KMS finds the version itself. The context is additional
authenticated data. Requests and replies carry checksums, as Google advises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from google.api_core import exceptions as google
from google.auth import exceptions as auth
from google.cloud.kms_v1 import KeyManagementServiceClient
from google.oauth2 import service_account
from google_crc32c import value as crc32c
from requests import RequestException

from tenantq.errors import Invalid, KeyDisabled, KmsDenied, KmsError, KmsUnavailable, SealBroken, TenantqError
from tenantq.kms.blocking_provider import ProviderThreads, busy_error, silence_debug, unreachable_error
from tenantq.kms.interface import Context, context_bytes
from tenantq.kms.secret_file import read_secret_file
from tenantq.kms.settings import GcpSettings

NAME: Final = "gcp-kms"

_PART: Final = r"[A-Za-z0-9_-]{1,63}"
_KEY = re.compile(rf"projects/[A-Za-z0-9:._-]{{1,100}}/locations/{_PART}/keyRings/{_PART}/cryptoKeys/{_PART}")
_SCOPE: Final = "https://www.googleapis.com/auth/cloudkms"


class GcpKms:
    """Keys of Cloud KMS. The client blocks, so it runs in threads; it does not retry, ``ResilientKms`` does."""

    def __init__(self, settings: GcpSettings, *, call_ms: int = 3_000, credentials: Any = None) -> None:
        """Create the provider without a call. Raises Invalid if there are no credentials."""
        silence_debug("google.cloud.kms", "google.cloud.kms_v1")  # at debug level they log requests, and so keys
        self._timeout_s = call_ms / 1_000
        options = {"api_endpoint": settings.endpoint} if settings.endpoint is not None else {}
        try:
            self._client = KeyManagementServiceClient(
                credentials=credentials or _credentials(settings), transport="rest", client_options=options
            )
        except auth.GoogleAuthError as error:
            raise Invalid(
                f"kms.gcp: no credentials were found ({type(error).__name__}). Set kms.gcp.credentials_file, or give"
                " the machine a service account"
            ) from None
        self._threads = ProviderThreads(NAME)

    def __repr__(self) -> str:
        return "GcpKms()"

    def check_key(self, key: str) -> None:
        """Raise Invalid unless ``key`` is the resource name of a key."""
        if _KEY.fullmatch(key) is None:
            raise Invalid("key: gcp-kms takes projects/P/locations/L/keyRings/R/cryptoKeys/K, without a version")

    async def wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        """Encrypt with the key's primary version."""
        aad = context_bytes(context)

        def encrypt() -> bytes:
            answer = self._client.encrypt(
                request={
                    "name": key,
                    "plaintext": plaintext,
                    "plaintext_crc32c": crc32c(plaintext),
                    "additional_authenticated_data": aad,
                    "additional_authenticated_data_crc32c": crc32c(aad),
                },
                retry=None,
                timeout=self._timeout_s,
            )
            arrived = answer.verified_plaintext_crc32c and answer.verified_additional_authenticated_data_crc32c
            if not arrived or crc32c(answer.ciphertext) != answer.ciphertext_crc32c:
                raise _garbled()
            return bytes(answer.ciphertext)

        return await self._threads.run(lambda: _call(encrypt))

    async def unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        """Decrypt with the version that the wrapped bytes name."""
        aad = context_bytes(context)

        def decrypt() -> bytes:
            answer = self._client.decrypt(
                request={
                    "name": key,
                    "ciphertext": wrapped,
                    "ciphertext_crc32c": crc32c(wrapped),
                    "additional_authenticated_data": aad,
                    "additional_authenticated_data_crc32c": crc32c(aad),
                },
                retry=None,
                timeout=self._timeout_s,
            )
            if crc32c(answer.plaintext) != answer.plaintext_crc32c:
                raise _garbled()
            return bytes(answer.plaintext)

        return await self._threads.run(lambda: _call(decrypt))

    async def close(self) -> None:
        """Close the connections."""
        self._threads.close()
        self._client.transport.close()  # type: ignore[no-untyped-call]  # of Google's, without types


def _credentials(settings: GcpSettings) -> Any:
    """Return the credentials of the configured file; None: the client library finds its own."""
    if settings.credentials_file is None:
        return None
    try:
        content, _ = read_secret_file(Path(settings.credentials_file))
        facts = json.loads(content)
        made: Any = service_account.Credentials
        return made.from_service_account_info(facts, scopes=[_SCOPE])
    except OSError as error:
        raise Invalid(f"kms.gcp.credentials_file: {settings.credentials_file}: {error.strerror}") from None
    except Invalid as error:
        raise Invalid(f"kms.gcp.credentials_file: {settings.credentials_file}: {error.message}") from None
    except (ValueError, TypeError, AttributeError):  # its text may reveal the content
        raise Invalid(f"kms.gcp.credentials_file: {settings.credentials_file}: these are no credentials") from None


def _call(call: Callable[[], bytes]) -> bytes:
    try:
        return call()
    except google.GoogleAPICallError as error:
        raise _typed(error) from None
    except auth.TransportError as error:
        raise unreachable_error(NAME, error) from None
    except auth.GoogleAuthError as error:
        raise KmsDenied(f"{NAME}: this server's credentials do not work ({type(error).__name__}).") from None
    except (google.GoogleAPIError, RequestException) as error:
        raise unreachable_error(NAME, error) from None


def _typed(error: google.GoogleAPICallError) -> TenantqError:
    """Return our error for a reply of Cloud KMS. Its text has only the status, because theirs may name projects."""
    http = int(error.code or 0)
    status = _status_of(error) or str(http)
    if http == 404 or status == "FAILED_PRECONDITION":
        return KeyDisabled(f"{NAME}: the key, or its version, is disabled, destroyed or does not exist ({status}).")
    if http in {401, 403}:
        return KmsDenied(
            f"{NAME}: this server may not use the key ({status}). Give it the role of encrypter and decrypter."
        )
    if http in {408, 429, 499} or http >= 500:
        headers = error.response.headers if error.response is not None else {}
        return busy_error(NAME, status, headers.get("Retry-After"))
    if http == 400 and error.response is not None and str(error.response.url).split("?")[0].endswith(":decrypt"):
        return SealBroken(f"{NAME}: these bytes were not wrapped by this key for this purpose ({status}).")
    return KmsError(f"{NAME}: the call was refused ({status}). The key has to be one for symmetric encryption.")


def _status_of(error: google.GoogleAPICallError) -> str:
    try:
        return str(error.response.json()["error"]["status"])[:80]
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""


def _garbled() -> KmsUnavailable:
    return KmsUnavailable(f"{NAME}: what arrived has another checksum than what was sent. Try again later.")
