"""Opens the configured providers. A provider's library is only imported if it is configured."""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tenantq.domain.validation import validated
from tenantq.errors import Invalid
from tenantq.kms.interface import KeyWrapper, Kms
from tenantq.kms.local import LocalKms
from tenantq.kms.resilient import ResilientKms
from tenantq.kms.settings import KmsSettings
from tenantq.runtime.clock import Clock
from tenantq.runtime.randomness import Randomness


def open_kms(
    settings: KmsSettings, clock: Clock, randomness: Randomness, environment: Mapping[str, str] = os.environ
) -> dict[str, Kms]:
    """Return the configured key management systems by name. Raises Invalid. ``randomness`` is for jitter, not for keys.

    Makes no network call. With a passphrase, unlocking the keyring takes some computing time.
    """
    validated(settings, "kms.")
    call_ms = settings.retry.call_ms
    wrappers: dict[str, KeyWrapper] = {}
    if settings.local is not None:
        wrappers["local"] = LocalKms(settings.local, environment)
    if settings.aws is not None:
        wrappers["aws-kms"] = _provider("aws", "AwsKms")(settings.aws, call_ms=call_ms)
    if settings.gcp is not None:
        wrappers["gcp-kms"] = _provider("gcp", "GcpKms")(settings.gcp, call_ms=call_ms)
    if settings.azure is not None:
        wrappers["azure-kv"] = _provider("azure", "AzureKms")(settings.azure, call_ms=call_ms)
    return {name: ResilientKms(name, wrapper, clock, randomness, settings.retry) for name, wrapper in wrappers.items()}


def _provider(extra: str, kind: str) -> Any:
    try:
        module = import_module(f"tenantq.kms.{extra}")
    except ModuleNotFoundError as error:
        raise Invalid(
            f"kms.{extra}: a library is missing ({error.name}). Run pip install '.[{extra}]' in the checkout."
        ) from None
    return getattr(module, kind)
