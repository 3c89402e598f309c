"""Objects of discovered groups: names, manifests, and which object owns a group.

Kubernetes names are more restricted than Kafka group ids. If the id is a valid name, it is the object's name. Otherwise
the name is derived from the id and ends in a hash, and `spec.groupId` has the id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

from penstock_operator.model.common import API_VERSION
from penstock_operator.model.group import ConsumerGroup
from penstock_operator.ports.kube import Object

CONFLICT = "Conflict"
"""Ready reason of an object whose group belongs to another object."""
DISCOVERED = "penstock.io/discovered"
CLUSTER_LABEL = "penstock.io/cluster"
FIELD_MANAGER = "penstock-operator"
MAX_NAME = 253
MAX_PREFIX = 200
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def plain_name(group_id: str) -> str | None:
    """Return the id if it is a valid Kubernetes name, otherwise None."""
    return group_id if len(group_id) <= MAX_NAME and _NAME.fullmatch(group_id) else None


def hashed_name(cluster: str, group_id: str) -> str:
    """Return a valid name for any id, unique per cluster and id."""
    digest = hashlib.sha256(f"{cluster}\0{group_id}".encode()).hexdigest()[:10]
    readable = re.sub(r"[^a-z0-9]+", "-", group_id.lower())[:MAX_PREFIX].strip("-")
    return f"{readable or 'group'}-{digest}"


def is_discovered(body: Object) -> bool:
    """Whether the operator created the object for a discovered group and no user changed it."""
    labels = body["metadata"].get("labels") or {}
    return labels.get(DISCOVERED) == "true" and not is_taken_over(body)


def is_taken_over(body: Object) -> bool:
    """Whether a user applied a manifest to a discovered object; it is no longer deleted with the group."""
    metadata, spec = body["metadata"], body.get("spec", {})
    if (metadata.get("labels") or {}).get(DISCOVERED) != "true":
        return False
    if any(entry.get("manager") != FIELD_MANAGER for entry in metadata.get("managedFields") or ()):
        return True
    # Unknown fields are ignored: a newer schema may set defaults for them.
    defaults = {
        "deletionPolicy": "Retain",
        "paused": False,
        "reset": None,
        "startingOffsets": None,
        "type": None,
        "config": {},
    }
    return any(spec.get(key, default) != default for key, default in defaults.items())


def discovered(cluster: Object, name: str, group_id: str) -> Object:
    """Return the manifest of a discovered group of `cluster`."""
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


def has_owned_group(group: ConsumerGroup) -> bool:
    """Whether the status shows that the object has owned its group, and not a conflict."""
    conditions = group.status.conditions
    return bool(conditions) and not any(condition.reason == CONFLICT for condition in conditions)


def winners(groups: Iterable[tuple[ConsumerGroup, bool]]) -> Mapping[str, ConsumerGroup]:
    """Return the owning object by group id. Input: objects, and whether each is discovered. Objects of users take
    precedence over discovered ones, then the older object, then, as creation times have a resolution of one second, the
    previous owner."""
    best: dict[str, tuple[tuple[bool, str, bool, str], ConsumerGroup]] = {}
    for group, is_found in groups:
        rank = (is_found, group.metadata.creation_timestamp, not has_owned_group(group), group.metadata.uid)
        before = best.get(group.group_id)
        if before is None or rank < before[0]:
            best[group.group_id] = (rank, group)
    return {group_id: group for group_id, (_, group) in best.items()}
