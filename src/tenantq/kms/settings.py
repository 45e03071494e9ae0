"""Settings of the key management systems. Reading them needs no provider's library."""

from __future__ import annotations

import ipaddress
import urllib.parse

import msgspec

from tenantq.domain.message import check_int
from tenantq.errors import Invalid
from tenantq.kms.interface import KeyRef


class LocalSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider ``local``: where the keyring is, and what unlocks it, which is exactly one of the three."""

    keyring: str  # a file of mode 0600
    passphrase_file: str | None = None  # mode 0600; the text without its line end
    passphrase_env: str | None = None  # the name of an environment variable
    master_key_file: str | None = None  # mode 0600; 32 random bytes, or 64 hexadecimal digits


class AwsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider ``aws-kms``. Credentials come from where boto3 looks for them: environment, files, the machine's role."""

    region: str | None = None  # of keys that are not named by an ARN; none: what boto3 finds
    endpoint_url: str | None = None  # none: the region's public one
    profile: str | None = None  # of the shared credentials file


class GcpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider ``gcp-kms``. Credentials are the application default ones unless a file is named."""

    credentials_file: str | None = None  # of a service account; mode 0600
    endpoint: str | None = None  # none: the public one


class AzureSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider ``azure-kv``. Credentials are those that DefaultAzureCredential finds."""

    vaults: tuple[str, ...]  # addresses of the vaults whose keys may be used, such as https://acme.vault.azure.net


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long and how often a key management system is asked before a call fails."""

    attempts: int = 4  # calls at most
    call_ms: int = 3_000  # the longest a single call may take
    total_ms: int = 8_000  # the longest all of them may take, pauses included
    backoff_base_ms: int = 100  # a pause is a random part of base * 2^(attempt - 1) ...
    backoff_max_ms: int = 2_000  # ... up to this
    rest_ms: int = 1_000  # after a failure, further calls for the same key fail at once for so long


class KmsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which key management systems a server uses. A provider without settings cannot be named by any tenant."""

    default_key: str | None = (
        None  # wraps the data keys of tenants that name none; none: each has its own in the keyring
    )
    local: LocalSettings | None = None  # none: a keyring in the data directory
    aws: AwsSettings | None = None
    gcp: GcpSettings | None = None
    azure: AzureSettings | None = None
    retry: RetrySettings = RetrySettings()


_RETRY_RANGES: dict[str, tuple[int, int]] = {
    "attempts": (1, 20),
    "call_ms": (100, 60_000),
    "total_ms": (100, 300_000),
    "backoff_base_ms": (1, 60_000),
    "backoff_max_ms": (1, 60_000),
    "rest_ms": (0, 60_000),
}


def check_kms(settings: KmsSettings) -> KmsSettings:
    """Return ``settings`` if each is in its range and every address is a safe one, else raise Invalid."""
    for field, (low, high) in _RETRY_RANGES.items():
        check_int(f"kms.retry.{field}", getattr(settings.retry, field), low, high)
    if settings.default_key is not None:
        provider = KeyRef.parse(settings.default_key).provider
        if provider != "local" and getattr(settings, provider.partition("-")[0]) is None:
            raise Invalid(
                f"kms.default_key: {provider} has no section of its own; add [kms.{provider.partition('-')[0]}]"
            )
    if settings.aws is not None and settings.aws.endpoint_url is not None:
        check_address("kms.aws.endpoint_url", settings.aws.endpoint_url)
    if settings.gcp is not None and settings.gcp.endpoint is not None:
        check_address("kms.gcp.endpoint", settings.gcp.endpoint)
    if settings.azure is not None:
        if not settings.azure.vaults:
            raise Invalid("kms.azure.vaults: name at least one vault, such as https://acme.vault.azure.net")
        for vault in settings.azure.vaults:
            check_address("kms.azure.vaults", vault)
    return settings


def check_address(field: str, address: str) -> str:
    """Return ``address`` if keys may be sent there: https, or http on this machine. Else raise Invalid."""
    try:
        parts = urllib.parse.urlsplit(address)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise Invalid(f"{field}: this is not a URL") from None
    if not host or not address.isprintable() or " " in address or "\\" in address:
        raise Invalid(f"{field}: this is not a URL with a host")
    if parts.username is not None or parts.password is not None:
        raise Invalid(f"{field}: no user or password can be in it")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise Invalid(f"{field}: only a scheme, a host and a port can be in it")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        raise Invalid(f"{field}: only https is allowed, or http on this machine itself")
    return address


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
