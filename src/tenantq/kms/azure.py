"""The provider ``azure-kv``: keys of Azure Key Vault or Managed HSM (``pip install '.[azure]'``).

A key is named by its identifier, ``https://VAULT/keys/NAME`` or ``https://VAULT/keys/NAME/VERSION``, in one of the configured
vaults. RSA keys wrap with RSA-OAEP-256, symmetric ones with AES key wrap. Neither supports a context, so its hash is wrapped
together with the key and compared afterwards. Wrapped bytes include the version that wrapped them, so rotation needs nothing else.
"""

import base64
import hashlib
import hmac
import re
import struct
from typing import Any, Final

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.core.rest import HttpRequest
from azure.identity import DefaultAzureCredential
from azure.keyvault.keys import KeyClient, KeyType

from tenantq.errors import DecryptionFailed, Invalid, KeyDisabled, KmsDenied, KmsError, TenantqError
from tenantq.kms.blocking_provider import BlockingProvider
from tenantq.kms.interface import Context, context_bytes
from tenantq.kms.settings import AzureSettings

NAME: Final = "azure-kv"

_NAME_AND_VERSION = re.compile(r"/keys/([A-Za-z0-9-]{1,127})(?:/([A-Za-z0-9]{1,64}))?")
_HEAD = struct.Struct(">BB")  # algorithm, length of the version
_BOUND_BYTES: Final = 32
_ALGORITHMS: Final = {1: "RSA-OAEP-256", 2: "A256KW"}
_RSA, _SYMMETRIC = 1, 2
_OF_TYPE: Final[dict[str, int]] = {
    KeyType.rsa: _RSA,
    KeyType.rsa_hsm: _RSA,
    KeyType.oct: _SYMMETRIC,
    KeyType.oct_hsm: _SYMMETRIC,
}
_NOT_USABLE: Final = frozenset(
    {"KeyDisabled", "KeyExpired", "KeyNotYetValid", "SecretDisabled", "ObjectIsBeingDeleted"}
)


class AzureKms(BlockingProvider):
    """Keys of Azure vaults.

    Requests use the key client's pipeline instead of CryptographyClient. That one wraps locally if it can, so a disabled key would
    continue to wrap. For symmetric keys of an HSM, whose bytes it never gets, it would wrap with random bytes of its own.
    """

    def __init__(self, settings: AzureSettings, *, call_ms: int = 3_000, credential: Any = None) -> None:
        """Create the provider without a call."""
        super().__init__(NAME, "azure")
        self._credential = credential if credential is not None else DefaultAzureCredential()
        seconds = call_ms / 1_000
        self._clients = {
            vault: KeyClient(
                vault, self._credential, retry_total=0, permit_redirects=False, connection_timeout=seconds,
                read_timeout=seconds,
            )
            for vault in (one.rstrip("/") for one in settings.vaults)
        }  # fmt: skip

    def check_key(self, key: str) -> None:
        """Raise Invalid unless ``key`` is an identifier of a key in one of the configured vaults."""
        self._split(key)

    def _disconnect(self) -> None:
        for client in self._clients.values():
            client.close()
        if hasattr(self._credential, "close"):
            self._credential.close()

    def _split(self, key: str) -> tuple[KeyClient, str, str | None]:
        for vault, client in self._clients.items():
            if key.startswith(vault + "/"):
                found = _NAME_AND_VERSION.fullmatch(key, len(vault))
                if found is not None:
                    return client, found[1], found[2]
        raise Invalid(
            "key: azure-kv takes a key identifier, https://VAULT/keys/NAME or https://VAULT/keys/NAME/VERSION, of a vault"
            " listed in kms.azure.vaults"
        )

    def _wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        client, name, wanted = self._split(key)
        facts = client.get_key(name, wanted)
        if facts.properties.enabled is False:
            raise KeyDisabled(f"{NAME}: the key is disabled.")
        algorithm = _OF_TYPE.get(facts.key_type)
        version = (facts.properties.version or "").encode()
        if algorithm is None or not 0 < len(version) <= 64:
            raise KmsError(f"{NAME}: the key must be an RSA or a symmetric key.")
        wrapped = _ask(client, name, version, "wrapkey", _ALGORITHMS[algorithm], _bound(context) + plaintext)
        return _HEAD.pack(algorithm, len(version)) + version + wrapped

    def _unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        client, name, _ = self._split(key)
        algorithm, length = _HEAD.unpack_from(wrapped.ljust(_HEAD.size, b"\0"))
        version, rest = wrapped[_HEAD.size :][:length], wrapped[_HEAD.size + length :]
        if algorithm not in _ALGORITHMS or not version.isalnum() or not rest:
            raise DecryptionFailed(f"{NAME}: the wrapped bytes were not written by this provider.")
        opened = _ask(client, name, version, "unwrapkey", _ALGORITHMS[algorithm], rest)
        if not hmac.compare_digest(opened[:_BOUND_BYTES], _bound(context)):
            raise DecryptionFailed(f"{NAME}: the wrapped bytes belong to another context.")
        return opened[_BOUND_BYTES:]

    def _typed(self, error: Exception) -> TenantqError | None:
        if isinstance(error, HttpResponseError):
            if error.response is None:  # of the credential, before a request was sent
                return KmsDenied(f"{NAME}: the server has no valid Azure credentials ({type(error).__name__}).")
            return self._refused(error)
        return self._unreachable(error) if isinstance(error, AzureError) else None

    def _refused(self, error: HttpResponseError) -> TenantqError:
        response: Any = error.response
        status = int(error.status_code or 0)
        code, inner = _codes_of(response)
        shown = inner or code or str(status)
        if status in {404, 409} or inner in _NOT_USABLE:
            return KeyDisabled(f"{NAME}: the key is disabled, expired, deleted or does not exist ({shown}).")
        if status in {401, 403} or isinstance(error, ClientAuthenticationError):
            return KmsDenied(f"{NAME}: the server may not use the key ({shown}). Allow get, wrapKey and unwrapKey.")
        if status in {408, 429} or status >= 500:
            return self._busy(shown, response.headers.get("Retry-After"))
        if status == 400 and response.request.url.split("?")[0].endswith("/unwrapkey"):
            return DecryptionFailed(f"{NAME}: the wrapped bytes do not belong to this key ({shown}).")
        return KmsError(f"{NAME}: the call was refused ({shown}).")


def _bound(context: Context) -> bytes:
    return hashlib.sha256(b"tenantq azure-kv context\0" + context_bytes(context)).digest()


def _ask(client: KeyClient, name: str, version: bytes, operation: str, algorithm: str, value: bytes) -> bytes:
    text = base64.urlsafe_b64encode(value).rstrip(b"=").decode()
    request = HttpRequest("POST", f"keys/{name}/{version.decode()}/{operation}", json={"alg": algorithm, "value": text})
    response = client.send_request(request)
    if response.status_code != 200:
        raise HttpResponseError(response=response)
    try:
        answer = response.json()["value"]
        return base64.urlsafe_b64decode(answer + "=" * (-len(answer) % 4))
    except (ValueError, KeyError, TypeError):
        raise KmsError(f"{NAME}: the reply is not from a key vault. Check kms.azure.vaults.") from None


def _codes_of(response: Any) -> tuple[str, str]:
    """Return the error code of a reply and its inner code, which is more precise."""
    try:
        error = response.json()["error"]
        return str(error.get("code") or "")[:80], str((error.get("innererror") or {}).get("code") or "")[:80]
    except (AttributeError, KeyError, TypeError, ValueError):
        return "", ""
