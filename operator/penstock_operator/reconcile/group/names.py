"""Discovered groups: which objects there should be, what they are called, and whose they are.

Kubernetes allows fewer names than the Kafka protocol does. A group whose id is a name keeps it; others get a readable
name that ends in a hash of the id, and `spec.groupId` says what they are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

from penstock_operator.model.common import API_VERSION
from penstock_operator.model.group import ConsumerGroup
from penstock_operator.ports.kube import Object

CONFLICT = "Conflict"
"""Why an object is not Ready whose group belongs to another one."""
DISCOVERED = "penstock.io/discovered"
CLUSTER_LABEL = "penstock.io/cluster"
FIELD_MANAGER = "penstock-operator"
MAX_NAME = 253
MAX_PREFIX = 200
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def plain_name(group_id: str) -> str | None:
    """The id itself, where it is a name."""
    return group_id if len(group_id) <= MAX_NAME and _NAME.fullmatch(group_id) else None


def hashed_name(cluster: str, group_id: str) -> str:
    """A name for any id; differs between ids, and between clusters of one namespace."""
    digest = hashlib.sha256(f"{cluster}\0{group_id}".encode()).hexdigest()[:10]
    readable = re.sub(r"[^a-z0-9]+", "-", group_id.lower())[:MAX_PREFIX].strip("-")
    return f"{readable or 'group'}-{digest}"


def is_discovered(body: Object) -> bool:
    """Whether an object is there because the group is: nobody but the operator has had a say in it."""
    labels = body["metadata"].get("labels") or {}
    return labels.get(DISCOVERED) == "true" and not is_taken_over(body)


def is_taken_over(body: Object) -> bool:
    """Whether somebody applied a manifest over an object that had been discovered: it is theirs then, and stays."""
    metadata, spec = body["metadata"], body.get("spec", {})
    if (metadata.get("labels") or {}).get(DISCOVERED) != "true":
        return False
    if any(entry.get("manager") != FIELD_MANAGER for entry in metadata.get("managedFields") or ()):
        return True
    # Fields that are not known here say nothing: a newer schema may fill them in by itself.
    defaults = {"deletionPolicy": "Retain", "paused": False, "reset": None, "startingOffsets": None}
    return any(spec.get(key, default) != default for key, default in defaults.items())


def discovered(cluster: Object, name: str, group_id: str) -> Object:
    """The object for a group of `cluster` that has none."""
    metadata = cluster["metadata"]
    owner = {
        "apiVersion": API_VERSION,
        "kind": "Cluster",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }
    spec: Object = {"clusterRef": {"name": metadata["name"]}}
    if name != group_id:
        spec["groupId"] = group_id
    labels = {DISCOVERED: "true", CLUSTER_LABEL: metadata["name"], "app.kubernetes.io/managed-by": FIELD_MANAGER}
    return {
        "apiVersion": API_VERSION,
        "kind": "ConsumerGroup",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def has_had_it(group: ConsumerGroup) -> bool:
    """Whether an object's status is of its group, and not of the object that the group belongs to."""
    conditions = group.status.conditions
    return bool(conditions) and not any(condition.reason == CONFLICT for condition in conditions)


def winners(groups: Iterable[tuple[ConsumerGroup, bool]]) -> Mapping[str, ConsumerGroup]:
    """Of objects (and whether each is discovered) the one that each group belongs to, by group id: what somebody
    applied comes before what was discovered, then the older one; of those made in one second, which is as finely as an
    API server tells, the one that has had it."""
    best: dict[str, tuple[tuple[bool, str, bool, str], ConsumerGroup]] = {}
    for group, is_found in groups:
        rank = (is_found, group.metadata.creation_timestamp, not has_had_it(group), group.metadata.uid)
        before = best.get(group.group_id)
        if before is None or rank < before[0]:
            best[group.group_id] = (rank, group)
    return {group_id: group for group_id, (_, group) in best.items()}
