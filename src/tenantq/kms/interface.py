"""What a key management system has to do for tenantq: wrap a few bytes, and unwrap them again.

A provider is a ``KeyWrapper``. ``SteadyKms`` makes a ``Kms`` of it: retries, bounds in time, and each key's health.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, Literal, Protocol

import msgspec

from tenantq.domain.message import check_text
from tenantq.errors import Invalid

KEY_CHARS_MAX: Final = 2_048
PROVIDERS: Final = ("local", "aws-kms", "gcp-kms", "azure-kv")

Context = Mapping[str, str]
"""What a wrapped key belongs to. Unwrapping needs the very same context."""

KeyState = Literal["unknown", "ok", "unavailable", "denied", "disabled", "failed"]


class KeyRef(msgspec.Struct, frozen=True, order=True):
    """Names one key in one key management system. Its text is ``provider:key``."""

    provider: str  # one of PROVIDERS
    key: str  # as the provider names it

    def __str__(self) -> str:
        return f"{self.provider}:{self.key}"

    @classmethod
    def parse(cls, text: object) -> KeyRef:
        """Return the reference that ``text`` is, or raise Invalid."""
        if type(text) is not str or ":" not in text:
            raise Invalid("key: a key is named as 'provider:key', for example 'local:main'")
        provider, _, key = text.partition(":")
        if provider not in PROVIDERS:
            raise Invalid(f"key: the part before the first colon is a provider: {', '.join(PROVIDERS)}")
        return cls(provider, check_text("key", key, KEY_CHARS_MAX))


class KeyHealth(msgspec.Struct, frozen=True):
    """How one key did when it was last used. Times are of the wall clock."""

    provider: str
    key: str
    state: KeyState = "unknown"
    since: int = 0  # when it came into this state
    last_ok_at: int | None = None
    failures: int = 0  # calls that failed since the last good one
    text: str = ""  # what went wrong


class KeyWrapper(Protocol):
    """One provider. It tries once; every failure is a typed error.

    KmsUnavailable: trying again may help. KmsDenied, KeyDisabled, KmsError: it will not, until somebody changes something.
    SealBroken: the wrapped bytes are not what this key wrapped in this context.
    """

    def check_key(self, key: str) -> None:
        """Raise Invalid unless ``key`` can be the name of a key here. Asks nobody."""

    async def wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        """Return ``plaintext``, which is short, as only this key can unwrap it, bound to ``context``."""

    async def unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        """Return what ``wrap`` was given, also after the key was rotated."""

    async def close(self) -> None:
        """Let go of connections and threads."""


class Kms(Protocol):
    """A key management system as the vault uses it."""

    def check_key(self, key: str) -> None:
        """Raise Invalid unless ``key`` can be the name of a key here. Asks nobody."""

    async def wrap(self, key: str, plaintext: bytes, context: Context) -> bytes:
        """Return ``plaintext`` wrapped. Bounded in time; KmsUnavailable, KmsError."""

    async def unwrap(self, key: str, wrapped: bytes, context: Context) -> bytes:
        """Return what was wrapped. Bounded in time; KmsUnavailable, KmsError, SealBroken."""

    async def check(self, key: str) -> KeyHealth:
        """Wrap and unwrap something, and return how it went; raises nothing."""

    def health(self) -> list[KeyHealth]:
        """Return the health of every key used so far."""

    async def close(self) -> None:
        """Let go of connections and threads."""


_LENGTH = struct.Struct(">I")


def context_bytes(context: Context) -> bytes:
    """Return the one encoding of a context, for providers that take bytes: names sorted, every text with its length."""
    parts = []
    for name, value in sorted(context.items()):
        for text in (name, value):
            raw = text.encode()
            parts += [_LENGTH.pack(len(raw)), raw]
    return b"".join(parts)
