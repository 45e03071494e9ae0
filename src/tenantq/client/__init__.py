"""The Python client of tenantq: ``Client`` for blocking code, ``AsyncClient`` for asyncio."""

from tenantq.client.async_admin import AsyncPlatform
from tenantq.client.async_client import AsyncClient
from tenantq.client.async_message import AsyncMessage
from tenantq.client.async_queue import AsyncFleet, AsyncQueue
from tenantq.client.async_tenant import AsyncTenant
from tenantq.client.bodies import UNSET
from tenantq.client.received import Received
from tenantq.client.settings import NO_RETRIES, Retries, Settings, Tls
from tenantq.client.sync_client import Client, Fleet, Message, Platform, Queue, Tenant
from tenantq.client.values import Added, JobResult, Page, StoredMessage
from tenantq.domain.message import NewMessage

__all__ = [
    "NO_RETRIES",
    "UNSET",
    "Added",
    "AsyncClient",
    "AsyncFleet",
    "AsyncMessage",
    "AsyncPlatform",
    "AsyncQueue",
    "AsyncTenant",
    "Client",
    "Fleet",
    "JobResult",
    "Message",
    "NewMessage",
    "Page",
    "Platform",
    "Queue",
    "Received",
    "Retries",
    "Settings",
    "StoredMessage",
    "Tenant",
    "Tls",
]
