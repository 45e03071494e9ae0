"""A web service in which every customer has their own queues.

A customer is a tenant: its work, limits and audit trail are separate from those of other customers. The customer comes from the
API key of the request, never from its body.

    pip install tenantq fastapi uvicorn
    CUSTOMER_KEYS='{"key-of-acme": "acme"}' TENANTQ_TOKEN=tq_… uvicorn fastapi_app:app
    curl -H 'X-API-Key: key-of-acme' -d '{"title": "October"}' -H 'Content-Type: application/json' localhost:8000/reports
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from tenantq import AsyncClient, Limited, NotFound
from tenantq.client import NO_RETRIES, AsyncQueue

CUSTOMERS: dict[str, str] = json.loads(os.environ.get("CUSTOMER_KEYS", "{}"))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Share one client, which keeps its connections, among all requests."""
    url = os.environ.get("TENANTQ_URL", "http://127.0.0.1:7070")
    token = os.environ["TENANTQ_TOKEN"]
    async with AsyncClient(url, token, retries=NO_RETRIES) as app.state.client:  # customers retry, instead of waiting
        yield


app = FastAPI(lifespan=lifespan)


def reports(request: Request, x_api_key: Annotated[str, Header()]) -> AsyncQueue:
    """Return the customer's queue."""
    if x_api_key not in CUSTOMERS:
        raise HTTPException(401, "unknown API key")
    client: AsyncClient = request.app.state.client
    return client.tenant(CUSTOMERS[x_api_key]).queue("reports")


Reports = Annotated[AsyncQueue, Depends(reports)]


class Report(BaseModel):
    """What a customer orders."""

    title: str


@app.post("/reports", status_code=202)
async def order(
    report: Report, queue: Reports, idempotency_key: Annotated[str | None, Header()] = None
) -> dict[str, str]:
    """Queue a report. A repeated request with the same Idempotency-Key queues it once."""
    added = await queue.add(report.model_dump(), key=idempotency_key)
    return {"id": added.id}


@app.get("/reports/{id}")
async def status(id: str, queue: Reports) -> dict[str, Any]:
    """Return the report, or its state."""
    try:
        result = await queue.result(id)
    except NotFound:
        raise HTTPException(404, "unknown report") from None
    return {"status": result.status, "report": result.json() if result.status == "completed" else None}


@app.exception_handler(Limited)
async def too_much(_: Request, error: Limited) -> JSONResponse:
    """Pass the customer's own limits on to the customer."""
    seconds = -(-error.retry_after_ms // 1_000)
    return JSONResponse({"detail": error.message}, 429, headers={"Retry-After": str(seconds)})
