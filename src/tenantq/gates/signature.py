"""Signed requests (AWS Signature Version 4): from a key's ID and a signature to the key's token, which the other gates use.

The secret never travels. It is recomputed from the key's id, and counts only if the token it makes is the one whose hash is stored.
"""

import hmac
from typing import Final

import msgspec

from tenantq.errors import SignatureRefused
from tenantq.gates.api_key import ApiKeySource, token_hash
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


class _DerivedKey(msgspec.Struct, frozen=True):
    """A day's key, and the token of the API key it is derived from."""

    key: bytes
    token: str
    token_hash: bytes


class Signatures:
    """Checks signatures. Derived keys are cached for a day, up to a limit."""

    def __init__(self, source: ApiKeySource, keys: KeyMaker, clock: Clock) -> None:
        self._source = source
        self._keys = keys
        self._clock = clock
        self._derived: BoundedDict[tuple[str, str, str, str], _DerivedKey] = BoundedDict(SIGNING_KEYS_MAX)

    def token(self, signed: SignedRequest) -> str:
        """Return the token of the signing key. Raises SignatureRefused."""
        self._check_time(signed)
        if signed.service != SERVICE or not signed.time.startswith(signed.day):
            raise SignatureRefused(f"Credential should be scoped to its own day and to the service {SERVICE}.")
        signing = self._signing_key(signed)
        text = f"{ALGORITHM}\n{signed.time}\n{signed.scope}\n{signed.request_hash}"
        expected = hmac.digest(signing.key, text.encode(), "sha256").hex()
        if not hmac.compare_digest(expected.encode(), signed.signature.encode("utf-8", "replace")):
            raise SignatureRefused
        return signing.token

    def _check_time(self, signed: SignedRequest) -> None:
        now = self._clock.wall_ms()
        over_at = signed.signed_at + (SKEW_MS if signed.valid_ms is None else signed.valid_ms)
        if now > over_at:
            raise SignatureRefused(f"Signature expired: it was created at {signed.time}")
        if signed.signed_at > now + SKEW_MS:
            raise SignatureRefused(f"Signature not yet current: it was created at {signed.time}")

    def _signing_key(self, signed: SignedRequest) -> _DerivedKey:
        what = (signed.key_id, signed.day, signed.region, signed.service)
        found = self._derived.get(what)
        if found is not None:
            if self._source.key(found.token_hash) is not None:
                return found
            del self._derived[what]
        key = self._source.key_of_id(signed.key_id)
        if key is None:
            raise SignatureRefused("The signing key is unknown, revoked or expired.", aws_code=UNKNOWN_KEY)
        token = self._keys.token_of(signed.key_id)
        if not hmac.compare_digest(token_hash(token), key.token_hash):
            raise SignatureRefused(
                "The secret of this key is not known to the server: it was chosen by hand, made before requests could be signed, "
                "or made by another server. Make a new key.",
                aws_code=UNKNOWN_KEY,
            )
        derived = ("AWS4" + token.rpartition("_")[2]).encode()
        for part in (signed.day, signed.region, signed.service, "aws4_request"):
            derived = hmac.digest(derived, part.encode(), "sha256")
        made = self._derived[what] = _DerivedKey(derived, token, key.token_hash)
        return made
