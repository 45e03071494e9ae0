"""Signed requests (AWS Signature Version 4): from a key's ID and a signature to the key's token, which the other gates use.

The secret never travels. It is recomputed from the key's ID, on any shard or on none: a correct signature proves only that its
sender holds the token. Authentication then decides, as for a token that was sent, whether the key exists and is valid.
"""

import hmac
from typing import Final, Protocol

import msgspec

from tenantq.errors import SignatureRefused
from tenantq.gates.key_maker import KeyMaker
from tenantq.runtime.bounded_dict import BoundedDict
from tenantq.runtime.clock import Clock

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SERVICE: Final = "sqs"
UNKNOWN_KEY: Final = "InvalidClientTokenId"
SKEW_MS: Final = 15 * 60_000
"""Largest difference between the time of a signature and the server's clock."""

SIGNING_KEYS_MAX: Final = 4_096


class SignedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The signature of a request, and the hash of what was signed."""

    key_id: str
    day: str  # of the scope, as yyyymmdd
    region: str
    service: str
    time: str  # as yyyymmddThhmmssZ
    signed_at: int  # the same, wall clock
    signature: str  # hexadecimal digits
    request_hash: str  # of the canonical request
    valid_ms: int | None = None  # lifetime of a presigned URL; None: within the skew

    @property
    def scope(self) -> str:
        return f"{self.day}/{self.region}/{self.service}/aws4_request"


class StoredKeys(Protocol):
    """Knows the API keys of all shards."""

    async def stores(self, token: str) -> bool:
        """Return whether a token belongs to a stored key, revoked or not. Raises Unavailable if a shard cannot be asked."""


class _DerivedKey(msgspec.Struct, frozen=True):
    """A day's key, and the token of the API key it is derived from."""

    key: bytes
    token: str


class Signatures:
    """Checks signatures. Derived keys that have signed a request are cached for a day, up to a limit."""

    def __init__(self, stored: StoredKeys, keys: KeyMaker, clock: Clock) -> None:
        self._stored = stored
        self._keys = keys
        self._clock = clock
        self._derived: BoundedDict[tuple[str, str, str, str], _DerivedKey] = BoundedDict(SIGNING_KEYS_MAX)

    async def token(self, signed: SignedRequest) -> str:
        """Return the token of the signing key, which may be revoked. Raises SignatureRefused; Unavailable as ``StoredKeys``."""
        self._check_time(signed)
        if signed.service != SERVICE or not signed.time.startswith(signed.day):
            raise SignatureRefused(f"Credential should be scoped to its own day and to the service {SERVICE}.")
        scope = (signed.key_id, signed.day, signed.region, signed.service)
        found = self._derived.get(scope)
        signing = found if found is not None else self._derive(signed)
        text = f"{ALGORITHM}\n{signed.time}\n{signed.scope}\n{signed.request_hash}"
        expected = hmac.digest(signing.key, text.encode(), "sha256").hex()
        if not hmac.compare_digest(expected.encode(), signed.signature.encode("utf-8", "replace")):
            raise await self._refusal(signing.token)
        if found is None:
            self._derived[scope] = signing  # only now: unknown keys cannot fill the cache
        return signing.token

    def _check_time(self, signed: SignedRequest) -> None:
        now = self._clock.wall_ms()
        over_at = signed.signed_at + (SKEW_MS if signed.valid_ms is None else signed.valid_ms)
        if now > over_at:
            raise SignatureRefused(f"Signature expired: it was created at {signed.time}")
        if signed.signed_at > now + SKEW_MS:
            raise SignatureRefused(f"Signature not yet current: it was created at {signed.time}")

    def _derive(self, signed: SignedRequest) -> _DerivedKey:
        token = self._keys.token_of(signed.key_id)
        key = ("AWS4" + token.rpartition("_")[2]).encode()
        for part in (signed.day, signed.region, signed.service, "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        return _DerivedKey(key, token)

    async def _refusal(self, token: str) -> SignatureRefused:
        """Return the error for a signature that was not created with this token."""
        if await self._stored.stores(token):
            return SignatureRefused()
        return SignatureRefused(
            "The signing key is unknown, or the server cannot recompute its secret, because it was chosen by hand or created by "
            "another server. Create a new key.",
            aws_code=UNKNOWN_KEY,
        )
