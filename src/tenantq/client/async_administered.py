"""What a tenant and the platform have alike: API keys and an audit trail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import msgspec

from tenantq import wire
from tenantq.client.async_queue import nothing, query
from tenantq.client.core import Core, Request, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

_created_key = msgspec.json.Decoder(wire.CreatedKey).decode
_keys_reply = msgspec.json.Decoder(wire.KeysReply).decode
_audit_reply = msgspec.json.Decoder(wire.AuditReply).decode


class AsyncAdministered:
    """Keys and audit trail, at the paths given."""

    def __init__(self, core: Core, *, keys: str, audit: str) -> None:
        self._core = core
        self._keys_path = keys
        self._audit_path = audit

    async def audit(
        self,
        *,
        action: str | Sequence[str] | None = None,
        result: Literal["SUCCESS", "DENIED", "ERROR"] | None = None,
        principal: str | None = None,
        start: int | None = None,
        end: int | None = None,
        queue: str | None = None,
        message: str | None = None,
        order: Literal["oldest", "newest"] | None = None,
        tenant: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> wire.AuditReply:
        """Return a page of what was done, by whom, with what outcome; its ``cursor`` leads to the next.

        A page may have fewer rows than ``limit``, or none, and a cursor all the same: go on until there is none. ``tenant`` is for the platform's audit trail only.
        """
        where = query(
            action=_actions_text(action), result=result, principal=principal, start=start, end=end, queue=queue,
            message=message, order=order, tenant=tenant, limit=limit, cursor=cursor,
        )  # fmt: skip
        return await self._core.call(
            Request(method="GET", target=self._audit_path + where, decode=_audit_reply, gzip=True)
        )

    async def create_key(
        self,
        name: str,
        *,
        role: str | None = None,
        actions: Sequence[str] = (),
        queues: Sequence[str] = ("*",),
        expires_at: int | None = None,
    ) -> wire.CreatedKey:
        """Make an API key: a role or actions, for queues by pattern. Its token is shown this once."""
        body = wire.CreateKeyRequest(
            name=name, role=role, actions=tuple(actions), queues=tuple(queues), expires_at=expires_at
        )
        request = Request(
            method="POST", target=self._keys_path, decode=_created_key, body=encode(body), repeatable=False
        )
        return await self._core.call(request)

    async def keys(self) -> list[wire.KeyItem]:
        """Return its API keys, without their secrets."""
        return (await self._core.call(Request(method="GET", target=self._keys_path, decode=_keys_reply))).keys

    async def revoke_key(self, key_id: str) -> None:
        """Refuse a key from now on."""
        target = f"{self._keys_path}/{quote(key_id, safe='')}"
        await self._core.call(Request(method="DELETE", target=target, decode=nothing, repeatable=False))


class AsyncPlatform(AsyncAdministered):
    """The platform itself, for its administrators."""

    def __init__(self, core: Core) -> None:
        super().__init__(core, keys="/v1/platform/keys", audit="/v1/audit")


def _actions_text(action: str | Sequence[str] | None) -> str | None:
    """Return one action or several as the query has them."""
    return action if action is None or isinstance(action, str) else ",".join(action)
