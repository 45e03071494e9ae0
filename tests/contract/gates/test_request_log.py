"""The request log names the caller and the call, and stays short under load."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tenantq.errors import Forbidden, NotFound
from tenantq.runtime.log_context import add_request_fields
from tests.contract.gates.harness import SETTINGS

if TYPE_CHECKING:
    from tenantq.service.request_log import RequestLogMode
    from tests.contract.gates.conftest import OpenHarness
    from tests.contract.gates.harness import ServiceHarness

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def open_logging(open_harness: OpenHarness, mode: RequestLogMode, per_second: int = 1_000) -> ServiceHarness:
    """Open a harness that logs requests."""
    settings = msgspec.structs.replace(SETTINGS, request_log=mode, request_log_per_second=per_second)
    return await open_harness(settings=settings)


def requests(caplog: pytest.LogCaptureFixture, action: str) -> list[dict[str, Any]]:
    """Return the lines about an action."""
    records = [record.__dict__ for record in caplog.records if record.name == "tenantq.requests"]
    return [record for record in records if record["action"] == action]


async def test_log_line_names_tenant_queue_caller_and_trace(
    open_harness: OpenHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Successful and refused calls have their IDs."""
    caplog.set_level(logging.INFO, logger="tenantq.requests")
    harness = await open_logging(open_harness, "all")
    for name in ("acme", "bolt"):
        await harness.tenant(name)
    call, key_id = await harness.key_and_id("acme")
    traced = msgspec.structs.replace(call, traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")
    await harness.add(traced, "mail", "secret words")
    await harness.add(traced, "mail", "secret words")
    with pytest.raises((Forbidden, NotFound)):
        await harness.add(traced, "mail", "secret words", tenant="bolt")
    _, good, bad = requests(caplog, "add")
    wanted = {
        "tenant": "acme", "tenant_id": harness.shard.tenant("acme").id, "queue": "mail",
        "queue_id": harness.shard.tenant("acme").queues["mail"].id, "request_id": "r-1", "principal": f"key:{key_id}",
        "trace_id": TRACE, "outcome": "ok",
    }  # fmt: skip
    assert {name: good[name] for name in wanted} == wanted
    assert good["duration_ms"] >= 0
    assert (bad["tenant"], bad["principal"], bad["outcome"]) == ("bolt", f"key:{key_id}", "forbidden")
    assert "secret" not in caplog.text


async def test_log_can_be_limited_to_errors(open_harness: OpenHarness, caplog: pytest.LogCaptureFixture) -> None:
    """The default is no request log."""
    caplog.set_level(logging.INFO, logger="tenantq.requests")
    harness = await open_logging(open_harness, "errors")
    await harness.tenant("acme")
    await harness.tenant("bolt")
    call = await harness.key("acme")
    await harness.add(call, "mail", "x")
    with pytest.raises((Forbidden, NotFound)):
        await harness.add(call, "mail", "x", tenant="bolt")
    assert [record["outcome"] for record in requests(caplog, "add")] == ["forbidden"]


async def test_log_is_sampled_under_load(open_harness: OpenHarness, caplog: pytest.LogCaptureFixture) -> None:
    """No second has more lines than set, and each line says how many calls it represents."""
    caplog.set_level(logging.INFO, logger="tenantq.requests")
    harness = await open_logging(open_harness, "all", per_second=10)
    await harness.tenant("acme")
    call = await harness.key("acme")
    await harness.pass_time(5_000)
    caplog.clear()
    for _ in range(50):
        await harness.add(call, "mail", "x")
    assert len(requests(caplog, "add")) == 10
    await harness.pass_time(1_000)
    caplog.clear()
    for _ in range(50):
        await harness.add(call, "mail", "x")
    assert [record["sampled"] for record in requests(caplog, "add")] == [5] * 10
    await harness.pass_time(10_000)
    caplog.clear()
    await harness.add(call, "mail", "x")
    (line,) = requests(caplog, "add")
    assert "sampled" not in line


async def test_other_lines_have_the_fields_of_the_request_that_caused_them(open_harness: OpenHarness) -> None:
    """This works even if the code that logs does not know the request."""
    harness = await open_harness()
    await harness.tenant("acme")
    call = await harness.key("acme")
    with await harness.admission.admit(call, None, "get_queue", "mail"):
        record = logging.makeLogRecord({"msg": "odd", "queue": "its own"})
        assert add_request_fields(record)
    fields = record.__dict__
    assert (fields["tenant"], fields["request_id"], fields["queue"]) == ("acme", "r-1", "its own")
