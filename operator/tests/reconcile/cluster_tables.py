"""Builders of clusters, pods and brokers for tables of desired × observed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from penstock_operator.model.cluster import Cluster
from penstock_operator.model.parse import parse
from penstock_operator.ports.brokers import BrokerSnapshot, ObservedBrokerState, ObservedPartition, ObservedTopicState
from penstock_operator.ports.kube import STATEFUL_SETS
from penstock_operator.reconcile.cluster.observed import ObservedCluster, ObservedPod, ReportedState
from penstock_operator.reconcile.cluster.partitions import summary

NOW = "2026-03-01T12:00:00Z"
LONG_AGO = "2026-03-01T11:00:00Z"
NEW, OLD = "new", "old"


def cluster(replicas: int = 3, *, status: Mapping[str, Any] | None = None, **spec: Any) -> Cluster:
    return parse(
        "Cluster",
        {
            "metadata": {"name": "c", "namespace": "ns", "uid": "u", "generation": 1},
            "spec": {"etcd": {"endpoints": ["e"]}, "brokers": {"replicas": replicas}, **spec},
            "status": {"clusterId": "id", **(status or {})},
        },
    )


def pod(ordinal: int, restart: str = NEW, **more: Any) -> ObservedPod:
    """Return a pod that serves."""
    made = ObservedPod(
        ordinal, f"c-broker-{ordinal}", f"uid-{ordinal}", restart, is_ready=True, ready_since=LONG_AGO,
        is_running=True, is_etcd_ready=True, node=f"node-{ordinal}",
    )  # fmt: skip
    return replace(made, **more)


def away(ordinal: int, restart: str = NEW, **more: Any) -> ObservedPod:
    """Return a pod that runs but does not serve."""
    return pod(ordinal, restart, is_ready=False, ready_since=NOW, **more)


def broken(ordinal: int, restart: str = NEW, **more: Any) -> ObservedPod:
    """Return a pod whose container does not run."""
    return away(ordinal, restart, is_running=False, is_etcd_ready=False, problem="ImagePullBackOff", **more)


def part(replicas: Sequence[int], isr: Sequence[int] | None = None, **more: Any) -> ObservedPartition:
    in_sync = tuple(replicas if isr is None else isr)
    return ObservedPartition(in_sync[0] if in_sync else -1, tuple(replicas), in_sync, **more)


def topics(**parts: ObservedPartition | Iterable[ObservedPartition]) -> dict[str, ObservedTopicState]:
    return {
        name: ObservedTopicState(name, UUID(int=1), (found,) if isinstance(found, ObservedPartition) else tuple(found))
        for name, found in parts.items()
    }


def reported(
    brokers: Iterable[int],
    there: Mapping[str, ObservedTopicState] | None = None,
    *,
    controller: int = 0,
    draining: Iterable[int] = (),
    removable: Iterable[int] = (),
    silent: Iterable[int] = (),
    settings: Mapping[int, Mapping[str, str]] | None = None,
) -> ReportedState:
    there = there or {}
    numbers = list(brokers)
    states = tuple(
        ObservedBrokerState(
            n, f"b{n}", 9092, None, "", n in set(draining), n in set(removable), "0.1.0", answers=n not in set(silent)
        )
        for n in numbers
    )
    return ReportedState(
        BrokerSnapshot("id", controller, states), settings or {n: {} for n in numbers}, there, summary(there)
    )


def observed(
    pods: Iterable[ObservedPod] = (), reported: ReportedState | None = None, *, replicas: int | None = None, **more: Any
) -> ObservedCluster:
    """Return an observed cluster; `replicas` are the StatefulSet's, None: no StatefulSet."""
    live = dict(more.pop("live", {}))
    if replicas is not None:
        live[STATEFUL_SETS, "c-broker"] = {
            "metadata": {"name": "c-broker", "uid": "sts"},
            "spec": {"replicas": replicas},
        }
    error = "" if reported is not None else "no answer"
    return ObservedCluster(now=NOW, live=live, pods=tuple(pods), reported=reported, brokers_error=error, **more)
