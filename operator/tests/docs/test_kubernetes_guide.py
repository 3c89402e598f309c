"""The guide's ScaledObject against the metrics of the operator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from penstock_operator.engine.metrics import OperatorMetrics

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "kubernetes.md"
QUERY = re.compile(r'sum\((?P<metric>\w+)\{(?P<labels>(?:\w+="[^"]*"(?:, )?)*)\}\)')
LABEL = re.compile(r'(\w+)="([^"]*)"')


def scaled_object() -> dict[str, Any]:
    (found,) = re.findall(r"```yaml\n(apiVersion: keda.*?)```", GUIDE.read_text(), re.DOTALL)
    return dict(yaml.safe_load(found))


def group(name: str, lag: int) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "queue", "name": name},
        "spec": {"clusterRef": {"name": "penstock"}},
        "status": {"lag": lag},
    }


def test_the_query_of_the_scaled_object_selects_the_backlog_of_its_group() -> None:
    metrics = OperatorMetrics()
    discovered = group("workers-1a2b3c4d5e", 1_234)
    discovered["spec"]["groupId"] = "workers"
    metrics.watch_groups(lambda: [group("workers", 1_234), discovered, group("others", 7)])
    (trigger,) = scaled_object()["spec"]["triggers"]
    query = QUERY.fullmatch(trigger["metadata"]["query"])
    assert query is not None
    wanted = dict(LABEL.findall(query["labels"]))
    samples = [
        sample
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if sample.name == query["metric"] and wanted.items() <= sample.labels.items()
    ]
    assert [sample.value for sample in samples] == [1_234]
