"""The annotations and patches that the plugin writes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_operator.plugin.changes import (
    InvalidRequest,
    broker_number,
    choose_cluster,
    drain_annotations,
    reset_patch,
    restart_annotations,
)
from penstock_operator.ports.kube import Object
from penstock_operator.specs import names

PODS = [{"metadata": {"name": f"c-broker-{n}", "uid": f"uid-{n}"}} for n in range(2)]


def cluster(name: str = "c", **annotations: str) -> Object:
    meta = {"name": name, "annotations": {f"penstock.io/{k.replace('_', '-')}": v for k, v in annotations.items()}}
    return {"metadata": meta, "status": {"brokers": [{"id": 0}, {"id": 1}]}}


def test_restarts_that_are_not_done_yet_are_kept() -> None:
    body = cluster(restart_pods="uid-0,gone")
    assert restart_annotations(body, PODS, 1, "now") == {names.RESTART_PODS: "uid-0,uid-1"}
    assert restart_annotations(body, PODS, 0, "now") == {names.RESTART_PODS: "uid-0"}
    assert restart_annotations(body, PODS, None, "now") == {names.RESTART: "now"}
    with pytest.raises(InvalidRequest, match="has no pod"):
        restart_annotations(body, [], 1, "now")


def test_a_drain_is_added_once_and_removed() -> None:
    assert drain_annotations(cluster(drain_brokers="0, 1"), 1, is_ended=False) == {names.DRAIN_BROKERS: "0,1"}
    assert drain_annotations(cluster(drain_brokers="1"), 1, is_ended=True) == {names.DRAIN_BROKERS: None}


def test_one_cluster_is_chosen_or_named() -> None:
    assert choose_cluster([cluster()], "", "ns") == cluster()
    assert choose_cluster([cluster(), cluster("d")], "d", "ns") == cluster("d")
    with pytest.raises(InvalidRequest, match="2 Clusters: c, d; choose one with --cluster"):
        choose_cluster([cluster(), cluster("d")], "", "ns")
    with pytest.raises(InvalidRequest, match="set --namespace"):
        choose_cluster([], "", "ns")


@pytest.mark.parametrize("text", ["2", "-1", "x", "", "1.0", "99999999"])
def test_a_broker_must_exist(text: str) -> None:
    with pytest.raises(InvalidRequest, match="found: 0, 1"):
        broker_number(text, cluster())


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        ("earliest", {"to": "earliest"}),
        ("42", {"to": "offset", "offset": 42}),
        ("2026-11-21T08:00:00Z", {"to": "timestamp", "timestamp": "2026-11-21T08:00:00Z"}),
    ],
)
def test_a_reset_has_one_target_and_removes_the_fields_of_an_earlier_one(target: str, fields: dict[str, Any]) -> None:
    empty = {"timestamp": None, "offset": None, "topics": None, "partitions": None, "dryRun": None}
    assert reset_patch("r", target, (), (), dry_run=False) == {"spec": {"reset": {"id": "r", **empty, **fields}}}
