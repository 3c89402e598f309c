"""Nodes, and what a pod requires of its node. Part of `ObservedCluster`, used by `spread`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock_operator.ports.kube import Object


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node. `taints` are those that keep pods away: key, value and effect."""

    name: str
    is_ready: bool = True
    is_cordoned: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class NodeRequirements:
    """What a pod requires of its node. Node affinity and resources are left to the scheduler."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    prefers_apart: bool = True
    """Whether the pod asks the scheduler to spread it."""

    def allow(self, node: ObservedNode) -> bool:
        """Whether a pod may be scheduled on the node."""
        if not node.is_ready or node.is_cordoned or not self.node_selector.items() <= node.labels.items():
            return False
        return all(any(tolerates(one, taint) for one in self.tolerations) for taint in node.taints)


def read_node(body: Object) -> ObservedNode:
    """Return the state of a node."""
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    ready = next((c.get("status") for c in status.get("conditions") or () if c.get("type") == "Ready"), "True")
    taints = (
        (str(taint.get("key") or ""), str(taint.get("value") or ""), str(taint.get("effect") or ""))
        for taint in spec.get("taints") or ()
    )
    return ObservedNode(
        name=meta["name"],
        is_ready=ready == "True",
        is_cordoned=bool(spec.get("unschedulable")),
        labels=meta.get("labels") or {},
        taints=tuple(taint for taint in taints if taint[2] in ("NoSchedule", "NoExecute")),
    )


def read_requirements(pod_spec: Mapping[str, Any]) -> NodeRequirements:
    """Return what a pod requires of its node."""
    affinity = pod_spec.get("affinity") or {}
    return NodeRequirements(
        node_selector=pod_spec.get("nodeSelector") or {},
        tolerations=tuple(pod_spec.get("tolerations") or ()),
        prefers_apart=bool(affinity.get("podAntiAffinity") or pod_spec.get("topologySpreadConstraints")),
    )


def tolerates(toleration: Mapping[str, Any], taint: tuple[str, str, str]) -> bool:
    """Whether a toleration matches a taint, as in the Kubernetes API."""
    key, value, effect = taint
    if toleration.get("effect") not in (None, "", effect):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", key)
    return toleration.get("key") == key and (toleration.get("value") or "") == value
