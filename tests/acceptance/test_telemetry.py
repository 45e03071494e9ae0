"""OpenTelemetry: traces across producer, server and worker, and metrics and logs over OTLP. All parts are real processes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import msgspec
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client.parser import text_string_to_metric_families

from tenantq.client.session import find_tracing
from tests.acceptance.collector import Collector, Series, attributes, collecting
from tests.acceptance.command import ADMIN_TOKEN, SECONDS_MAX, run, serving
from tests.acceptance.traced_application import OWN
from tests.redis_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEADERS = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


class Observed(msgspec.Struct, frozen=True):
    """What a collector received from an application and a stopped server, and the last scrape before."""

    collector: Collector
    metrics: str

    def span(self, name: str, *, kind: int | None = None, parent: Span | None = None, index: int = 0) -> Span:
        """Return a span by its name, kind and parent."""
        found = [
            one
            for one in self.collector.spans
            if one.name == name
            and (kind is None or one.kind == kind)
            and (parent is None or one.parent_span_id == parent.span_id)
        ]
        assert found, (name, [(one.name, one.kind) for one in self.collector.spans])
        return sorted(found, key=lambda one: one.start_time_unix_nano)[index]


def application(part: str, collector: Collector, *arguments: str) -> None:
    """Run a part of the application until it exits."""
    program = [sys.executable, "-m", "tests.acceptance.traced_application", part, collector.url, *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """Run the application against a server that exports everything, and stop both."""
    with collecting() as collector:
        options = {"TENANTQ_TELEMETRY__OTLP_ENDPOINT": collector.url, "TENANTQ_GATES__REQUEST_LOG": "all"}
        with serving(tmp_path_factory.mktemp("traced") / "data", **options) as served:
            httpx.put(f"{served.url}/v1/tenants/acme", headers=HEADERS).raise_for_status()
            key = {"name": "application", "role": "tenant-admin"}
            made = httpx.post(f"{served.url}/v1/tenants/acme/keys", json=key, headers=HEADERS).raise_for_status()
            for part in ("produce", "work"):
                application(part, collector, served.url, made.json()["token"])
            refused = httpx.post(f"{served.url}/v1/tenants/acme/queues/single/poll", json={})
            assert refused.status_code == 401
            metrics = httpx.get(f"{served.url}/metrics", headers=HEADERS).raise_for_status().text
            served.process.terminate()
            _, err = served.process.communicate(timeout=SECONDS_MAX)
            assert served.process.returncode == 0, err
        yield Observed(collector, metrics)


def test_one_trace_covers_producer_server_and_ack(observed: Observed) -> None:
    """Each span is a child of the previous one, and the handler's spans belong to the trace."""
    order = observed.span("order")
    send = observed.span("send single", parent=order)
    add = observed.span("add single", parent=send)
    process = observed.span("process single", parent=send)
    handler = observed.span("handler", parent=process)
    follow_up = observed.span("send next", parent=handler)
    ack = observed.span("ack single", parent=process)
    spans = (order, send, add, process, handler, follow_up, ack)
    assert {one.trace_id for one in spans} == {order.trace_id}
    kinds = Span.SpanKind
    assert [one.kind for one in (send, add, process, ack)] == [
        kinds.SPAN_KIND_PRODUCER, kinds.SPAN_KIND_SERVER, kinds.SPAN_KIND_CONSUMER, kinds.SPAN_KIND_SERVER,
    ]  # fmt: skip
    wanted = {
        "messaging.system": "tenantq",
        "messaging.operation.name": "ack",
        "messaging.destination.name": "single",
        "tenantq.tenant": "acme",
    }
    assert attributes(ack.attributes).items() >= wanted.items()
    assert attributes(process.attributes)["tenantq.outcome"] == "acked"
    assert [one.span_id for one in process.links] == [send.span_id]


def test_a_batch_has_one_producer_span_and_links_to_other_traces(observed: Observed) -> None:
    """Messages get its context, except those that had one. The poll that delivers them is linked to all."""
    _, own_trace, own_span, _ = OWN.split("-")
    send = observed.span("send batch", parent=observed.span("orders"))
    assert attributes(send.attributes)["messaging.batch.message_count"] == 3
    assert [one.span_id.hex() for one in send.links] == [own_span]
    processed = [one for one in observed.collector.spans if one.name == "process batch"]
    assert sorted(
        one.parent_span_id.hex() for one in processed if attributes(one.attributes)["tenantq.attempt"] == 1
    ) == (sorted([send.span_id.hex(), send.span_id.hex(), own_span]))
    (failed, *_) = [one for one in processed if one.trace_id.hex() == own_trace]
    assert failed.status.code == Status.StatusCode.STATUS_CODE_ERROR
    assert [attributes(one.attributes)["exception.message"] for one in failed.events] == ["no c"]
    polls = [one for one in observed.collector.spans if one.name == "poll batch"]
    linked = {link.span_id.hex() for one in polls for link in one.links}
    assert linked == {send.span_id.hex(), own_span}


def test_calls_of_several_traces_in_one_request_are_linked(observed: Observed) -> None:
    """The request has a span of its own."""
    sends = {observed.span("send shared", parent=observed.span(f"order {number}")).span_id for number in (1, 2)}
    request = observed.span("send shared", kind=Span.SpanKind.SPAN_KIND_CLIENT)
    assert {link.span_id for link in request.links} == sends
    add = observed.span("add shared", parent=request)
    assert {link.span_id for link in add.links} == sends


def test_message_with_full_attributes_is_added_without_a_context(observed: Observed) -> None:
    """Tracing never makes an add fail."""
    send = observed.span("send full", parent=observed.span("full"))
    add = observed.span("add full", parent=send)
    assert not add.HasField("status") or add.status.code == Status.StatusCode.STATUS_CODE_UNSET


def test_a_refused_call_has_a_span_with_its_error_code(observed: Observed) -> None:
    """Calls without a credential have one too."""
    refused = [one for one in observed.collector.spans if one.status.code == Status.StatusCode.STATUS_CODE_ERROR]
    codes = {attributes(one.attributes)["error.type"] for one in refused if one.name == "poll"}
    assert codes == {"unauthenticated"}


def test_exported_metrics_equal_the_scraped_ones(observed: Observed) -> None:
    """All names, and all values of the tenant, which was idle after the scrape."""
    scraped: Series = {}
    for family in text_string_to_metric_families(observed.metrics):
        for one in family.samples:
            shown = {**one.labels, **({"le": str(float(one.labels["le"]))} if "le" in one.labels else {})}
            scraped[one.name, frozenset(shown.items())] = one.value
    exported = observed.collector.last_series()
    assert {name for name, _ in exported} == {name for name, _ in scraped}
    assert [value for (name, _), value in exported.items() if name == "tenantq_added_total"]
    for (name, labels), value in scraped.items():
        if dict(labels).get("tenant") == "acme" and not name.endswith(
            ("_age_seconds", "_ratio")
        ):  # these change over time
            assert exported[name, labels] == value, (name, labels)


def test_exported_log_records_have_the_fields_and_the_trace_of_their_call(observed: Observed) -> None:
    """The trace is also in the record's own fields, as backends expect it."""
    add = observed.span("add single")
    (record,) = [one for one in observed.collector.records if one.span_id == add.span_id]
    fields = attributes(record.attributes)
    wanted = {"tenant": "acme", "queue": "single", "action": "add", "outcome": "ok", "trace_id": add.trace_id.hex()}
    assert fields.items() >= wanted.items()
    assert fields["request_id"] == attributes(add.attributes)["tenantq.request_id"]
    assert record.trace_id == add.trace_id
    assert (record.body.string_value, record.severity_text) == ("add: ok", "INFO")
    assert "ready" in [one.body.string_value for one in observed.collector.records]


@pytest.mark.parametrize("kind", ["shards", "cluster"])
def test_every_process_of_a_server_exports_its_shards(kind: str, tmp_path: Path) -> None:
    """The parts add up to what a scrape shows, and a forwarded call has one span."""
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(collecting())
        options = {"TENANTQ_TELEMETRY__OTLP_ENDPOINT": collector.url, "TENANTQ_SHARDS__COUNT": "2"}
        if kind == "cluster":
            redis = RedisServer(tmp_path / "redis", "appendonly yes", "appendfsync always")
            stack.callback(redis.kill)
            options = {**options, "TENANTQ_STORE": f"redis://127.0.0.1:{redis.port}", "TENANTQ_CLUSTER__SHARDS": "2"}
        served = stack.enter_context(serving(tmp_path / "data", **options))
        for number in range(4):
            url = f"{served.url}/v1/tenants/tenant-{number}"
            httpx.put(url, headers=HEADERS).raise_for_status()
            add = httpx.post(f"{url}/queues/mail/messages", json={"messages": [{"body": "x"}]}, headers=HEADERS)
            add.raise_for_status()
        served.process.terminate()
        _, err = served.process.communicate(timeout=SECONDS_MAX)
        assert served.process.returncode == 0, err
    tenants = [attributes(one.attributes)["tenantq.tenant"] for one in collector.spans if one.name == "add mail"]
    assert sorted(tenants) == [f"tenant-{number}" for number in range(4)]
    added = {
        (dict(labels)["shard"], dict(labels)["tenant"]): value
        for export in range(1, 1 + (2 if kind == "shards" else 1))
        for (name, labels), value in collector.last_series(export).items()
        if name == "tenantq_added_total" and dict(labels)["tenant"] in tenants
    }
    assert sorted(added.values()) == [1, 1, 1, 1], added


def test_silent_collector_delays_neither_calls_nor_stop(tmp_path: Path) -> None:
    """The problem is logged once for each kind of export."""
    with socket.socket() as silent, socket.socket() as closed:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # it accepts connections and never replies
        closed.bind(("127.0.0.1", 0))
        for number, dead in enumerate((silent, closed)):
            endpoint = f"http://127.0.0.1:{dead.getsockname()[1]}"
            options = {
                "TENANTQ_TELEMETRY__OTLP_ENDPOINT": endpoint,
                "TENANTQ_TELEMETRY__METRICS_INTERVAL_MS": "100",
                "TENANTQ_LOG_LEVEL": "debug",
            }
            with serving(tmp_path / str(number) / "data", **options) as served:
                url = f"{served.url}/v1/tenants/default/queues/mail/messages"
                for _ in range(20):
                    httpx.post(url, json={"messages": [{"body": "x"}]}, headers=HEADERS).raise_for_status()
                served.process.terminate()
                _, err = served.process.communicate(timeout=SECONDS_MAX)
                assert served.process.returncode == 0, err
        problems = [line for line in err.splitlines() if "telemetry is not exported" in line]
        assert 1 <= len(problems) <= 3, err


def test_clients_are_not_traced_without_a_tracer_provider() -> None:
    """Even with the library loaded, no tracing code runs and messages get no attributes."""
    assert "opentelemetry.trace" in sys.modules
    assert find_tracing() is None


def test_missing_telemetry_libraries_prevent_the_start(tmp_path: Path) -> None:
    """The error says what to install; serving without the configured export would be wrong."""
    (tmp_path / "opentelemetry.py").write_text("")  # hides the real package
    done = run(
        "serve", "--data-dir", tmp_path / "data", "--http", "127.0.0.1:0", PYTHONPATH=str(tmp_path),
        TENANTQ_TELEMETRY__OTLP_ENDPOINT="http://127.0.0.1:4318", TENANTQ_ADMIN_TOKEN=ADMIN_TOKEN,
    )  # fmt: skip
    assert done.returncode == 2
    assert "telemetry.otlp_endpoint: run pip install '.[otel]'" in done.stderr
