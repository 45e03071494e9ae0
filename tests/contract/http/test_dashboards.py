"""Dashboards and alert rules use metrics and labels that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tenantq.testing import FakeServer

if TYPE_CHECKING:
    from collections.abc import Iterator

PROJECT = Path(__file__).resolve().parents[3]
RULES = PROJECT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARDS = sorted((PROJECT / "deploy" / "grafana").glob("*.json"))
OF_PROMETHEUS = {"instance", "job", "le"}
NAME = re.compile(r"\btenantq_\w+")
SELECTOR = re.compile(r"(tenantq_\w+)\{([^}]*)\}")
GROUPED = re.compile(r"\bby \(([^)]*)\)")


def expressions() -> Iterator[tuple[str, str]]:
    """Yield every query, with the file that it is in."""
    for path in DASHBOARDS:
        dashboard: dict[str, Any] = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield path.name, target["expr"]
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                yield path.name, variable["query"]["query"]
    for rule in alert_rules():
        yield RULES.name, rule["expr"]


def alert_rules() -> list[dict[str, str]]:
    """Return name, query, severity and summary of each rule. promtool checks the rest of the syntax."""
    found = []
    for text in RULES.read_text().split("- alert: ")[1:]:
        fields = {"alert": text.split()[0], **dict(re.findall(r"^ +(expr|for): (.*)$", text, re.MULTILINE))}
        fields |= dict(re.findall(r"\{(severity): (\w+)\}", text)) | dict(re.findall(r'\{(summary): "(.*)"\}', text))
        found.append(fields)
    return found


def known_metrics() -> dict[str, set[str]]:
    """Return every sample of a working server with its labels, plus those that only the reference lists.

    A test compares the reference with servers of every kind.
    """
    found: dict[str, set[str]] = {}
    with FakeServer() as server:
        client = server.client()
        queue = client.queue("mail")
        queue.add("x")
        queue.poll()[0].ack()
        for family in text_string_to_metric_families(client.metrics()):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    page = (PROJECT / "docs" / "reference" / "metrics.md").read_text()
    for line in page.splitlines():
        if line.startswith("|`tenantq_"):
            names, *labels, meaning = (cell.strip() for cell in line.strip("|").split("|"))
            for name in re.findall(r"`(tenantq_\w+)`", names):
                listed = set(re.findall(r"`(\w+)`", " ".join([*labels, meaning]))) | {"shard"}
                if name.startswith("tenantq_queue_"):
                    listed |= {"tenant", "queue"}
                parts = ("_bucket", "_sum", "_count") if meaning.startswith("Histogram") else ("",)
                for part in parts:
                    found.setdefault(name + part, set()).update(listed)
    return found


def test_every_metric_and_label_in_use_exists() -> None:
    """Covers dashboards, their variables, and alert rules."""
    known = known_metrics()
    queries = list(expressions())
    assert len(DASHBOARDS) == 4
    assert len(queries) > 60
    for file, query in queries:
        names = set(NAME.findall(query))
        assert names or query.startswith("up{"), (file, query)
        assert names <= known.keys(), (file, names - known.keys())
        for name, labels in SELECTOR.findall(query):
            assert set(re.findall(r"(\w+)=", labels)) <= known[name] | OF_PROMETHEUS, (file, query)
        for labels in GROUPED.findall(query):
            allowed = set.intersection(*(known[name] for name in names)) | OF_PROMETHEUS
            assert {label.strip() for label in labels.split(",")} <= allowed, (file, query)


def test_every_queue_and_tenant_metric_is_on_a_dashboard_or_in_a_total() -> None:
    """The dashboards show each kind of figure."""
    used = {name for _, query in expressions() for name in NAME.findall(query)}
    wanted = {"tenantq_queue_messages", "tenantq_queue_oldest_age_seconds", "tenantq_queue_dead_letters", "tenantq_queue_workers",
              "tenantq_queue_wait_seconds_bucket", "tenantq_queue_processing_seconds_bucket", "tenantq_tenant_quota_used_ratio",
              "tenantq_tenant_rate_limit_total", "tenantq_tenant_turn_wait_seconds_bucket", "tenantq_cluster_owned_shards"}  # fmt: skip
    assert wanted <= used


def test_alert_rules_and_queries_are_valid_for_prometheus(tmp_path: Path) -> None:
    """Every rule has a severity and a sentence; promtool accepts the rules and the queries of the dashboards."""
    rules = alert_rules()
    assert len(rules) == RULES.read_text().count("alert:") == len({rule["alert"] for rule in rules})
    for rule in rules:
        assert rule["severity"] in {"info", "warning", "critical"}, rule["alert"]
        assert rule["summary"].endswith("."), rule["alert"]
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing, so only names and labels were checked: install the package prometheus")
    queries = [query for _, query in expressions() if not query.startswith("label_values")]
    lines = [f"  - {{record: q{at}, expr: {json.dumps(query)}}}" for at, query in enumerate(queries)]
    of_dashboards = tmp_path / "dashboards.yml"
    of_dashboards.write_text("groups:\n- name: q\n  rules:\n" + "\n".join(lines).replace("$__rate_interval", "5m"))
    for path in (RULES, of_dashboards):
        done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
