"""The interface of key management systems: wrap a few bytes and unwrap them again.

A provider is a ``KeyWrapper``. ``ResilientKms`` adds retries, time limits and the health of each key.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Protocol

import msgspec

from tenantq.domain.validation import check_field, text
from tenantq.errors import Invalid
from tenantq.runtime.histogram import Histogram

KmsKeyName = Annotated[str, text(2_048)]
PROVIDERS: Final = ("local", "aws-kms", "gcp-kms", "azure-kv")

Context = Mapping[str, str]
"""Names the owner of a wrapped key. Unwrapping needs the same context."""

KeyState = Literal["unknown", "ok", "unavailable", "denied", "disabled", "failed"]


class KeyRef(msgspec.Struct, frozen=True, order=True):
    """A reference to one key: ``provider:key``."""

    provider: str  # one of PROVIDERS
    key: str  # as the provider names it

    def __str__(self) -> str:
        return f"{self.provider}:{self.key}"

    @classmethod
    def parse(cls, text: object) -> KeyRef:
        """Parse a reference. Raises Invalid."""
        if type(text) is not str or ":" not in text:
            raise Invalid("key: must be 'provider:key', for example 'local:main'")
        provider, _, key = text.partition(":")
        if provider not in PROVIDERS:
            raise Invalid(f"key: unknown provider {provider[:40]!r} (must be one of {', '.join(PROVIDERS)})")
        return cls(provider, check_field("key", key, KmsKeyName))


class KeyHealth(msgspec.Struct, frozen=True):
    """The health of one key at its last use. Times are of the wall clock."""

    provider: str
    key: str
    state: KeyState = "unknown"
    since: int = 0  # when this state began
    last_ok_at: int | None = None
    failures: int = 0  # failed calls since the last success
    text: str = ""  # the last error


class KeyWrapper(Protocol):
    """One provider. It tries once; every failure is a typed error.

    KmsUnavailable: a retry may help. KmsDenied, KeyDisabled, KmsError: a retry does not help until the configuration changes.
    DecryptionFailed: this key did not wrap these bytes in this context.
    """

    def check_key(self, key: str) -> None:
        """Raise Invalid unless ``key`` can be the name of a key here. Makes no call."""

    async def wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        """Return a short ``plaintext`` wrapped by this key and bound to ``context``."""

    async def unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        """Return the plaintext, also after the key was rotated."""

    async def close(self) -> None:
        """Close connections and threads."""


class Kms(KeyWrapper, Protocol):
    """A provider with retries, time limits and the health of each key, as the vault uses it."""

    async def check(self, key: str) -> KeyHealth:
        """Wrap and unwrap a probe and return the key's health. Raises nothing."""

    def health(self) -> list[KeyHealth]:
        """Return the health of every key used so far."""

    def forget_health(self, key: str) -> None:
        """Drop the health of a key that is not in use."""

    @property
    def took(self) -> Histogram:
        """How long the attempts took."""

    @property
    def failed(self) -> int:
        """How many calls failed, after all attempts."""


_LENGTH = struct.Struct(">I")


def context_bytes(context: Context) -> bytes:
    """Return the canonical encoding of a context: names sorted, every text with its length."""
    parts = []
    for name, value in sorted(context.items()):
        for one in (name, value):
            raw = one.encode()
            parts += [_LENGTH.pack(len(raw)), raw]
    return b"".join(parts)
