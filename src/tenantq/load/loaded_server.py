"""The server under load, with the credential."""

import msgspec

from tenantq.client import AsyncClient, AsyncQueue, Retries, Tls

_RETRIES = Retries(count=3)


class LoadedServer(msgspec.Struct, frozen=True, kw_only=True):
    """Address and credential of the server under load."""

    url: str
    token: str | None = None
    tenant: str | None = None  # None: the credential's own
    timeout_ms: int = 10_000
    tls: Tls = Tls()

    def __repr__(self) -> str:
        """Show the address, never the token."""
        return f"<loaded server {self.url}>"

    def patient(self) -> AsyncClient:
        """Return a client with retries, for preparation and clean-up."""
        return AsyncClient(self.url, self.token, timeout_ms=self.timeout_ms, retries=_RETRIES, tls=self.tls)

    def measuring(self, *, connections: int, coalesce: bool, token: str | None = None) -> AsyncClient:
        """Return a client without retries, for measurements."""
        return AsyncClient(
            self.url,
            token or self.token,
            timeout_ms=self.timeout_ms,
            retries=0,
            connections=connections,
            coalesce=coalesce,
            tls=self.tls,
        )

    def queue(self, client: AsyncClient, name: str) -> AsyncQueue:
        """Return a queue of the tenant."""
        return client.queue(name) if self.tenant is None else client.tenant(self.tenant).queue(name)
