"""The provider ``aws-kms``: symmetric keys of AWS KMS, through boto3 (``pip install '.[aws]'``).

A key is named by its id, its ARN, or an alias (``alias/…`` or its ARN). An ARN includes the region. The context becomes the
encryption context, so it appears in CloudTrail and can be a condition of a key policy.
"""

import re
import threading
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)

from tenantq.errors import DecryptionFailed, Invalid, KeyDisabled, KmsDenied, KmsError, TenantqError
from tenantq.kms.blocking_provider import THREADS, BlockingProvider
from tenantq.kms.interface import Context
from tenantq.kms.settings import AwsSettings

NAME: Final = "aws-kms"
REGIONS_MAX: Final = 64

_KEY = re.compile(r"[A-Za-z0-9/_-]{1,256}")
_ARN = re.compile(r"arn:aws[a-z-]{0,16}:kms:([a-z0-9-]{1,32}):\d{12}:(?:key|alias)/[A-Za-z0-9/_-]{1,256}")

_AGAIN: Final = frozenset({
    "Throttling", "ThrottlingException", "TooManyRequestsException", "RequestLimitExceeded", "LimitExceededException",
    "DependencyTimeoutException", "KeyUnavailableException", "KMSInternalException", "InternalFailure", "ServiceUnavailable",
    "ServiceUnavailableException", "RequestTimeout", "RequestTimeoutException",
})  # fmt: skip
_DISABLED: Final = frozenset({"DisabledException", "KMSInvalidStateException", "NotFoundException"})
_DENIED: Final = frozenset({
    "AccessDenied", "AccessDeniedException", "ExpiredToken", "ExpiredTokenException", "IncompleteSignature",
    "InvalidClientTokenId", "InvalidGrantTokenException", "InvalidSignatureException", "MissingAuthenticationToken",
    "NotAuthorized", "NotAuthorizedException", "OptInRequired", "SignatureDoesNotMatch", "UnrecognizedClientException",
})  # fmt: skip
_BROKEN: Final = frozenset({"InvalidCiphertextException", "IncorrectKeyException"})
_NO_CREDENTIALS: Final = (
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)


class AwsKms(BlockingProvider):
    """Keys of AWS KMS."""

    def __init__(self, settings: AwsSettings, *, call_ms: int = 3_000) -> None:
        """Create the provider without a call. Raises Invalid if the profile or the region is unknown."""
        super().__init__(NAME, "boto3", "botocore")
        self._settings = settings
        self._config = Config(
            connect_timeout=call_ms / 1_000,
            read_timeout=call_ms / 1_000,
            retries={"total_max_attempts": 1},
            max_pool_connections=THREADS,
        )
        try:
            self._session = boto3.Session(region_name=settings.region, profile_name=settings.profile)
        except BotoCoreError as error:
            raise Invalid(f"kms.aws: {error}") from None
        self._making = threading.Lock()  # sessions are not thread-safe
        self._clients: dict[str | None, Any] = {}

    def check_key(self, key: str) -> None:
        """Raise Invalid unless ``key`` is an id, an alias or an ARN."""
        if _ARN.fullmatch(key) is None and _KEY.fullmatch(key) is None:
            raise Invalid("key: aws-kms takes a key ID, a key ARN or an alias such as 'alias/tenantq'")

    def _wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        reply = self._client(key).encrypt(KeyId=key, Plaintext=plaintext, EncryptionContext=dict(context))
        return bytes(reply["CiphertextBlob"])

    def _unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        # With KeyId, AWS ignores the key that the wrapped bytes name.
        reply = self._client(key).decrypt(KeyId=key, CiphertextBlob=wrapped, EncryptionContext=dict(context))
        return bytes(reply["Plaintext"])

    def _disconnect(self) -> None:
        for client in self._clients.values():
            client.close()

    def _typed(self, error: Exception) -> TenantqError | None:
        if isinstance(error, ClientError):
            return self._refused(error)
        if isinstance(error, NoRegionError):
            return KmsError(f"{NAME}: no region is configured. Set kms.aws.region, or name keys by their ARN.")
        if isinstance(error, _NO_CREDENTIALS):
            return KmsDenied(f"{NAME}: the server has no AWS credentials. Give it a role, or set AWS credentials.")
        return self._unreachable(error) if isinstance(error, BotoCoreError) else None

    def _refused(self, error: ClientError) -> TenantqError:
        code = str(error.response.get("Error", {}).get("Code", ""))[:80]
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code in _DISABLED:
            return KeyDisabled(f"{NAME}: the key is disabled, deleted or does not exist ({code}).")
        if code in _DENIED:
            return KmsDenied(f"{NAME}: the server may not use the key ({code}). Allow kms:Encrypt and kms:Decrypt.")
        if code in _BROKEN:
            return DecryptionFailed(f"{NAME}: the wrapped bytes do not belong to this key and context ({code}).")
        if code in _AGAIN or status >= 500 or status == 429:
            return self._busy(code or str(status))
        return KmsError(f"{NAME}: the call was refused ({code or status}). The key must be symmetric.")

    def _client(self, key: str) -> Any:
        arn = _ARN.fullmatch(key)
        region = arn[1] if arn is not None else self._settings.region
        with self._making:
            client = self._clients.get(region)
            if client is None:
                if len(self._clients) >= REGIONS_MAX:
                    raise KmsError(f"{NAME}: keys are in more than {REGIONS_MAX} regions. Use fewer regions.")
                client = self._clients[region] = self._session.client(
                    "kms", region_name=region, endpoint_url=self._settings.endpoint_url, config=self._config
                )
        return client
