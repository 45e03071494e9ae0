"""Settings of the key management systems. Reading them needs none of the providers' libraries."""

from typing import Annotated

import msgspec

from tenantq.domain.urls import check_secure_url
from tenantq.domain.validation import about, between
from tenantq.errors import Invalid
from tenantq.kms.interface import KeyRef

_BackoffMs = Annotated[int, between(1, 60_000)]


class LocalSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider ``local``: the keyring, and exactly one of the three ways to unlock it."""

    keyring: Annotated[str, about("Keyring file, mode 0600.")]
    passphrase_file: Annotated[str, about("File with the passphrase, mode 0600.")] | None = None
    passphrase_env: Annotated[str, about("Environment variable with the passphrase.")] | None = None
    master_key_file: Annotated[str, about("File with 32 random bytes or 64 hexadecimal digits, mode 0600.")] | None = (
        None
    )


class AwsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider ``aws-kms``. boto3 finds the credentials: environment, files, the machine's role."""

    region: (
        Annotated[str, about("Region of keys that are not named by an ARN. Default: the default of boto3.")] | None
    ) = None
    endpoint_url: Annotated[str, about("Endpoint. Default: the public one of the region.")] | None = None
    profile: Annotated[str, about("Profile of the shared credentials file.")] | None = None

    def __post_init__(self) -> None:
        """Refuse an endpoint to which keys must not be sent."""
        if self.endpoint_url is not None:
            check_secure_url("endpoint_url", self.endpoint_url, origin_only=True)


class GcpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider ``gcp-kms``. Without a file it uses the application default credentials."""

    credentials_file: Annotated[str, about("Credentials of a service account, mode 0600.")] | None = None
    endpoint: Annotated[str, about("Endpoint. Default: the public one.")] | None = None

    def __post_init__(self) -> None:
        """Refuse an endpoint to which keys must not be sent."""
        if self.endpoint is not None:
            check_secure_url("endpoint", self.endpoint, origin_only=True)


class AzureSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The provider ``azure-kv``. DefaultAzureCredential finds the credentials."""

    vaults: Annotated[
        tuple[str, ...],
        msgspec.Meta(min_length=1, description="Vaults to use, such as https://acme.vault.azure.net."),
    ]

    def __post_init__(self) -> None:
        """Refuse a vault to which keys must not be sent."""
        for vault in self.vaults:
            check_secure_url("vaults", vault, origin_only=True)


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long and how often a key management system is called before a request fails."""

    attempts: Annotated[int, between(1, 20, "Maximum number of calls.")] = 4
    call_ms: Annotated[int, between(100, 60_000, "Timeout of one call.")] = 3_000
    total_ms: Annotated[int, between(100, 300_000, "Timeout of all calls, including the delays between them.")] = 8_000
    backoff_base_ms: Annotated[
        _BackoffMs, about("Base of the delay, doubled with every attempt; the delay is a random part of it.")
    ] = 100
    backoff_max_ms: Annotated[_BackoffMs, about("Maximum delay between calls.")] = 2_000
    rest_ms: Annotated[
        int, between(0, 60_000, "Time after a failure during which calls for the same key fail at once.")
    ] = 1_000


class KmsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which key management systems a server uses. Tenants can use only providers with a section here, and ``local``."""

    default_key: Annotated[str, about("Key for tenants that name none. Default: a local key per tenant.")] | None = None
    local: LocalSettings | None = None  # none: a keyring in the data directory
    aws: AwsSettings | None = None
    gcp: GcpSettings | None = None
    azure: AzureSettings | None = None
    retry: RetrySettings = RetrySettings()

    def __post_init__(self) -> None:
        """Refuse a default key of a provider without a section."""
        if self.default_key is None:
            return
        section = KeyRef.parse(self.default_key).provider.partition("-")[0]
        if section != "local" and getattr(self, section) is None:
            raise Invalid(f"default_key: provider {section} is not configured. Add a section [kms.{section}].")
