"""What a call is about, told by its path: a tenant that is named, the credential's own, all of them, a fleet's, or none.

Of several shards it says where a call belongs; on every shard, where its caller has to be allowed to make it.
"""

from __future__ import annotations

from typing import Final

_OF_ALL: Final = frozenset((
    "/v1/tenants", "/v1/erasures", "/v1/erasures/{id}", "/v1/audit", "/v1/platform/keys", "/v1/platform/keys/{key_id}",
    "/v1/backups", "/metrics",
))  # fmt: skip
_ANYWHERE: Final = frozenset(("/healthz", "/readyz", "/openapi.json", "/docs", "/v1/topology"))
_FLEET_PATH: Final = "/v1/poll"

BY_TENANT, BY_CREDENTIAL, AT_HOME, HERE, FLEET = range(5)


def scope_of(path: str) -> int:
    """Return what calls to a path are about."""
    if "{tenant}" in path:
        return BY_TENANT
    if path in _OF_ALL:
        return AT_HOME
    if path in _ANYWHERE:
        return HERE
    return FLEET if path == _FLEET_PATH else BY_CREDENTIAL
