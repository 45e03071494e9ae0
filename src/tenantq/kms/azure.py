"""The provider ``azure-kv``: keys of Azure Key Vault or Managed HSM (``pip install 'tenantq[azure]'``).

A key is named by its identifier, ``https://VAULT/keys/NAME`` or ``https://VAULT/keys/NAME/VERSION``, in one of the configured
vaults. RSA keys wrap with RSA-OAEP-256, symmetric ones with AES key wrap. Neither supports a context, so its hash is wrapped
together with the key and compared afterwards. Wrapped bytes include the version that wrapped them, so rotation needs nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import struct
from collections.abc import Callable
from typing import Any, Final

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.core.rest import HttpRequest
from azure.identity import DefaultAzureCredential
from azure.keyvault.keys import KeyClient, KeyType

from tenantq.errors import Invalid, KeyDisabled, KmsDenied, KmsError, SealBroken, TenantqError
from tenantq.kms.blocking_provider import ProviderThreads, busy_error, silence_debug, unreachable_error
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


class AzureKms:
    """Keys of Azure vaults. The client blocks, so it runs in threads; it does not retry, ``ResilientKms`` does.

    Requests use the key client's pipeline instead of CryptographyClient. That one wraps locally if it can, so a disabled key would
    continue to wrap. For symmetric keys of an HSM, whose bytes it never gets, it would wrap with random bytes of its own.
    """

    def __init__(self, settings: AzureSettings, *, call_ms: int = 3_000, credential: Any = None) -> None:
        """Create the provider without a call."""
        silence_debug("azure")
        self._vaults = tuple(vault.rstrip("/") for vault in settings.vaults)
        self._credential = credential if credential is not None else DefaultAzureCredential()
        seconds = call_ms / 1_000
        self._clients = {
            vault: KeyClient(
                vault,
                self._credential,
                retry_total=0,
                permit_redirects=False,
                connection_timeout=seconds,
                read_timeout=seconds,
            )
            for vault in self._vaults
        }
        self._threads = ProviderThreads(NAME)

    def __repr__(self) -> str:
        return f"AzureKms({', '.join(self._vaults)})"

    def check_key(self, key: str) -> None:
        """Raise Invalid unless ``key`` is an identifier of a key in one of the configured vaults."""
        self._split(key)

    async def wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        """Wrap with the key's newest version, or the one it is named with."""
        return await self._threads.run(lambda: _call(lambda: self._wrap(key, _bound(context) + plaintext)))

    async def unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        """Unwrap with the version that wrapped."""
        opened = await self._threads.run(lambda: _call(lambda: self._unwrap(key, wrapped)))
        if not hmac.compare_digest(opened[:_BOUND_BYTES], _bound(context)):
            raise SealBroken(f"{NAME}: these bytes were wrapped for another purpose.")
        return opened[_BOUND_BYTES:]

    async def close(self) -> None:
        """Close the connections."""
        self._threads.close()
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
            "key: azure-kv takes a key's identifier, https://VAULT/keys/NAME or https://VAULT/keys/NAME/VERSION, in one of"
            " the vaults that kms.azure.vaults names"
        )

    def _wrap(self, key: str, plaintext: bytes) -> bytes:
        client, name, wanted = self._split(key)
        facts = client.get_key(name, wanted)
        if facts.properties.enabled is False:
            raise KeyDisabled(f"{NAME}: the key is disabled.")
        algorithm = _OF_TYPE.get(facts.key_type)
        version = (facts.properties.version or "").encode()
        if algorithm is None or not 0 < len(version) <= 64:
            raise KmsError(f"{NAME}: the key has to be an RSA or a symmetric one.")
        wrapped = _ask(client, name, version, "wrapkey", _ALGORITHMS[algorithm], plaintext)
        return _HEAD.pack(algorithm, len(version)) + version + wrapped

    def _unwrap(self, key: str, wrapped: bytes) -> bytes:
        client, name, _ = self._split(key)
        algorithm, length = _HEAD.unpack_from(wrapped.ljust(_HEAD.size, b"\0"))
        version, rest = wrapped[_HEAD.size :][:length], wrapped[_HEAD.size + length :]
        if algorithm not in _ALGORITHMS or not version.isalnum() or not rest:
            raise SealBroken(f"{NAME}: these wrapped bytes are not of this key management.")
        return _ask(client, name, version, "unwrapkey", _ALGORITHMS[algorithm], rest)


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
        raise KmsError(f"{NAME}: the answer is not one of a vault. Check kms.azure.vaults.") from None


def _call(call: Callable[[], bytes]) -> bytes:
    try:
        return call()
    except HttpResponseError as error:
        if error.response is None:  # of the credential, before a request was sent
            raise KmsDenied(
                f"{NAME}: this server has no valid credentials for Azure ({type(error).__name__})."
            ) from None
        raise _typed(error) from None
    except AzureError as error:
        raise unreachable_error(NAME, error) from None


def _typed(error: HttpResponseError) -> TenantqError:
    """Return our error for a reply of a vault. Its text has only the error code, because theirs may name tenants."""
    response: Any = error.response
    status = int(error.status_code or 0)
    code, inner = _codes_of(response)
    shown = inner or code or str(status)
    if status in {404, 409} or inner in _NOT_USABLE:
        return KeyDisabled(f"{NAME}: the key is disabled, expired, deleted or does not exist ({shown}).")
    if status in {401, 403} or isinstance(error, ClientAuthenticationError):
        return KmsDenied(f"{NAME}: this server may not use the key ({shown}). Allow it get, wrapKey and unwrapKey.")
    if status in {408, 429} or status >= 500:
        return busy_error(NAME, shown, response.headers.get("Retry-After"))
    if status == 400 and response.request.url.split("?")[0].endswith("/unwrapkey"):
        return SealBroken(f"{NAME}: these bytes were not wrapped by this key ({shown}).")
    return KmsError(f"{NAME}: the call was refused ({shown}).")


def _codes_of(response: Any) -> tuple[str, str]:
    """Return the error code of a reply and its inner code, which is more precise."""
    try:
        error = response.json()["error"]
        return str(error.get("code") or "")[:80], str((error.get("innererror") or {}).get("code") or "")[:80]
    except (AttributeError, KeyError, TypeError, ValueError):
        return "", ""
