"""The provider ``gcp-kms``: symmetric keys of Google Cloud KMS, through google-cloud-kms (``pip install '.[gcp]'``).

A key is named ``projects/…/locations/…/keyRings/…/cryptoKeys/…``; Cloud KMS finds the version itself. The context is additional
authenticated data. Requests and replies carry checksums, as Google advises.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

from google.api_core import exceptions as google
from google.auth import exceptions as auth
from google.cloud.kms_v1 import KeyManagementServiceClient
from google.oauth2 import service_account
from google_crc32c import value as crc32c
from requests import RequestException

from tenantq.errors import DecryptionFailed, Invalid, KeyDisabled, KmsDenied, KmsError, KmsUnavailable, TenantqError
from tenantq.kms.blocking_provider import BlockingProvider
from tenantq.kms.interface import Context, context_bytes
from tenantq.kms.secret_file import read_secret_file
from tenantq.kms.settings import GcpSettings

NAME: Final = "gcp-kms"

_PART: Final = r"[A-Za-z0-9_-]{1,63}"
_KEY = re.compile(rf"projects/[A-Za-z0-9:._-]{{1,100}}/locations/{_PART}/keyRings/{_PART}/cryptoKeys/{_PART}")
_SCOPE: Final = "https://www.googleapis.com/auth/cloudkms"


class GcpKms(BlockingProvider):
    """Keys of Cloud KMS."""

    def __init__(self, settings: GcpSettings, *, call_ms: int = 3_000, credentials: Any = None) -> None:
        """Create the provider without a call. Raises Invalid if no credentials are found."""
        super().__init__(NAME, "google.cloud.kms", "google.cloud.kms_v1")
        self._timeout_s = call_ms / 1_000
        options = {"api_endpoint": settings.endpoint} if settings.endpoint is not None else {}
        try:
            self._client = KeyManagementServiceClient(
                credentials=credentials or _credentials(settings), transport="rest", client_options=options
            )
        except auth.GoogleAuthError as error:
            raise Invalid(
                f"kms.gcp: no credentials found ({type(error).__name__}). Set kms.gcp.credentials_file, or attach a"
                " service account to the machine."
            ) from None

    def check_key(self, key: str) -> None:
        """Raise Invalid unless ``key`` is the resource name of a key."""
        if _KEY.fullmatch(key) is None:
            raise Invalid("key: gcp-kms takes projects/P/locations/L/keyRings/R/cryptoKeys/K, without a version")

    def _wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        aad = _aad_fields(context)
        request = {"name": key, "plaintext": plaintext, "plaintext_crc32c": crc32c(plaintext), **aad}
        reply = self._client.encrypt(request=request, retry=None, timeout=self._timeout_s)
        arrived = reply.verified_plaintext_crc32c and reply.verified_additional_authenticated_data_crc32c
        if not arrived or crc32c(reply.ciphertext) != reply.ciphertext_crc32c:
            raise _garbled()
        return bytes(reply.ciphertext)

    def _unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        aad = _aad_fields(context)
        request = {"name": key, "ciphertext": wrapped, "ciphertext_crc32c": crc32c(wrapped), **aad}
        reply = self._client.decrypt(request=request, retry=None, timeout=self._timeout_s)
        if crc32c(reply.plaintext) != reply.plaintext_crc32c:
            raise _garbled()
        return bytes(reply.plaintext)

    def _disconnect(self) -> None:
        self._client.transport.close()  # type: ignore[no-untyped-call]  # Google's method has no types

    def _typed(self, error: Exception) -> TenantqError | None:
        if isinstance(error, google.GoogleAPICallError):
            return self._refused(error)
        if isinstance(error, auth.GoogleAuthError) and not isinstance(error, auth.TransportError):
            return KmsDenied(f"{NAME}: the server's credentials are invalid ({type(error).__name__}).")
        known = (auth.TransportError, google.GoogleAPIError, RequestException)
        return self._unreachable(error) if isinstance(error, known) else None

    def _refused(self, error: google.GoogleAPICallError) -> TenantqError:
        http = int(error.code or 0)
        status = _status_of(error) or str(http)
        if http == 404 or status == "FAILED_PRECONDITION":
            return KeyDisabled(f"{NAME}: the key or its version is disabled, destroyed or does not exist ({status}).")
        if http in {401, 403}:
            return KmsDenied(
                f"{NAME}: the server may not use the key ({status}). Grant it the role"
                " roles/cloudkms.cryptoKeyEncrypterDecrypter."
            )
        if http in {408, 429, 499} or http >= 500:
            headers = error.response.headers if error.response is not None else {}
            return self._busy(status, headers.get("Retry-After"))
        if http == 400 and error.response is not None and str(error.response.url).split("?")[0].endswith(":decrypt"):
            return DecryptionFailed(f"{NAME}: the wrapped bytes do not belong to this key and context ({status}).")
        return KmsError(f"{NAME}: the call was refused ({status}). The purpose of the key must be ENCRYPT_DECRYPT.")


def _aad_fields(context: Context) -> dict[str, Any]:
    aad = context_bytes(context)
    return {"additional_authenticated_data": aad, "additional_authenticated_data_crc32c": crc32c(aad)}


def _credentials(settings: GcpSettings) -> Any:
    """Return the credentials of the configured file; None: the client library finds them."""
    if settings.credentials_file is None:
        return None
    where = f"kms.gcp.credentials_file: {settings.credentials_file}"
    try:
        content, _ = read_secret_file(Path(settings.credentials_file))
        facts = json.loads(content)
        credentials: Any = service_account.Credentials
        return credentials.from_service_account_info(facts, scopes=[_SCOPE])
    except OSError as error:
        raise Invalid(f"{where}: {error.strerror}") from None
    except Invalid as error:
        raise Invalid(f"{where}: {error.message}") from None
    except (ValueError, TypeError, AttributeError):  # its text may reveal the content
        raise Invalid(f"{where}: not a service account key file") from None


def _status_of(error: google.GoogleAPICallError) -> str:
    try:
        return str(error.response.json()["error"]["status"])[:80]
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""


def _garbled() -> KmsUnavailable:
    return KmsUnavailable(f"{NAME}: checksum mismatch between request and reply. Try again later.")
