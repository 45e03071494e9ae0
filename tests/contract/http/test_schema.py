"""Schemathesis against the real server: it behaves as its OpenAPI description says."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import schemathesis
import uvloop
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tenantq.http.openapi import openapi
from tenantq.http.routes import ROUTES
from tests.contract.http.real_server import ADMIN, real_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

AUTHORIZATION = {"Authorization": f"Bearer {ADMIN}"}
DOCUMENT = openapi(ROUTES)
schema = schemathesis.openapi.from_dict(DOCUMENT)


CREATED = {
    "put_tenant",
    "suspend_tenant",
    "suspend_queue",
    "reopen_queue",
    "delete_tenant",
    "hold_tenant",
    "release_hold",
    "put_queue",
    "put_queue_own",
    "delete_queue",
    "delete_queue_own",
}
"""Calls that would change or destroy what others read: they keep their generated names."""

BATCHES = {route.handler.__name__ for route in ROUTES if route.batch}


def fitting(case: schemathesis.Case[Any]) -> None:
    """Adapt a valid case to rules that no schema can express, and let no case wait for minutes."""
    part: Any
    for part in (case.body, case.query):
        if isinstance(part, dict) and type(part.get("wait_ms")) in {int, float} and 0 <= part["wait_ms"] <= 300_000:
            part["wait_ms"] = int(part["wait_ms"]) % 10
    case.query.pop("cursor", None)  # only issued values are valid
    if case.meta is None or case.meta.generation.mode != schemathesis.GenerationMode.POSITIVE:
        return
    names = case.path_parameters
    if case.operation.definition.raw["operationId"] not in CREATED:
        names.update({name: known for name, known in (("tenant", "acme"), ("queue", "work")) if name in names})
    if isinstance(case.body, dict):
        case.body = _fitting_body(case.body, names)


def _fitting_body(body: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    body = _whole_numbers(body)
    body.pop("cursor", None)
    if "confirm" in body:
        body["confirm"] = names.get("queue", names.get("tenant"))
        body["reason"] = body["reason"].strip().ljust(10, "!")
    elif set(body) == {"reason"} and isinstance(body["reason"], str):
        body["reason"] = body["reason"].strip().ljust(10, "!")
    if body.get("dead_letter") == names.get("queue"):
        body.pop("dead_letter", None)  # not itself
    if isinstance(body.get("defaults"), dict):
        body["defaults"].pop("dead_letter", None)  # not the same for all queues
    for unconfigured in ("encryption", "regions", "plan"):  # this server has no such keys, regions or plans
        body.pop(unconfigured, None)
    if isinstance(body.get("queues"), dict):  # the service checks the settings of a template
        body["queues"] = {name: {} for name in body["queues"]}
    if isinstance(body.get("settings"), dict):
        body["settings"] = {}
    if isinstance(body.get("alerts"), dict):
        body["alerts"].pop("targets", None)  # this server defines no plans
    if body.get("results") is not None and "receipts" in body:
        body["results"] = (body["results"] * len(body["receipts"]))[: len(body["receipts"])]
    return body


def _whole_numbers(value: Any) -> Any:
    """Write 1.0, which JSON Schema accepts as an integer, as 1."""
    if isinstance(value, dict):
        return {name: _whole_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class ServerThread:
    """A server on its own event loop, so that clients may block."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run()))
        self.url = ""

    def __enter__(self) -> str:
        """Start, and return the URL."""
        self._thread.start()
        assert self._started.wait(30)
        return self.url

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with real_server(self._data_dir) as server:
            self.url = f"http://127.0.0.1:{server.port}"
            self._started.set()
            await self._stop.wait()


@pytest.fixture(
    scope="module", params=["uvloop"]
)  # without a parameter all cases share one ID, and xdist would run only one
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server with one tenant, one queue and a few messages."""
    with ServerThread(tmp_path_factory.mktemp("schema")) as url:
        with httpx.Client(base_url=url, headers=AUTHORIZATION) as http:
            http.put("/v1/tenants/acme", json={}).raise_for_status()
            for path in ("/v1/tenants/acme/queues/work", "/v1/queues/work"):
                http.put(path, json={}).raise_for_status()
                http.post(f"{path}/messages", json={"messages": [{"body": "x"}] * 5}).raise_for_status()
        yield url


def test_served_description_is_the_tested_one(url: str) -> None:
    """They are equal as JSON."""
    assert httpx.get(f"{url}/openapi.json").json() == json.loads(json.dumps(DOCUMENT))


@schema.parametrize()
@settings(
    max_examples=5,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_server_follows_its_description(case: schemathesis.Case[Any], url: str, store_kind: str) -> None:
    """No 5xx and no undeclared status, type or field; input is refused exactly if the schema forbids it."""
    fitting(case)
    # Items of a batch are checked one by one, so one invalid item does not refuse the others.
    operation = case.operation.definition.raw["operationId"].removesuffix("_own")
    excluded: list[Any] = [negative_data_rejection] if operation in BATCHES else []
    if store_kind != "rocksdb" and operation == "create_backup":  # servers have their own backup tools
        excluded.append(positive_data_acceptance)
    case.call_and_validate(base_url=url, headers=AUTHORIZATION, excluded_checks=excluded)
