"""Collects inputs of `reconcile.topic` from the cache. Used by `controller`, `batch` and `orphans`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock_operator.engine.outages import ClusterKey
from penstock_operator.engine.ports import Objects
from penstock_operator.model.common import DeletionPolicy
from penstock_operator.model.parse import InvalidResource, parse
from penstock_operator.model.topic import Topic
from penstock_operator.ports.brokers import OWNER, ObservedTopicState
from penstock_operator.ports.kube import CLUSTERS, TOPICS, Kube, Object
from penstock_operator.reconcile.topic.types import OwnerAbsence


@dataclass(frozen=True, slots=True)
class DesiredTopics:
    """Topic objects of a cluster by topic name."""

    by_topic: Mapping[str, tuple[Object, ...]]

    def wants(self, name: str, uid: str) -> bool:
        """Whether the object with this UID specifies the topic."""
        return any(o["metadata"].get("uid") == uid for o in self.by_topic.get(name, ()))

    def rivals(self, of: Topic) -> tuple[Topic, ...]:
        """Return other valid objects for the same topic."""
        found = []
        for other in self.by_topic.get(of.topic_name, ()):
            if other["metadata"].get("uid") != of.metadata.uid:
                try:
                    found.append(parse("Topic", other))
                except InvalidResource:
                    continue
        return tuple(found)


def desired_topics(objects: Objects, cluster: ClusterKey) -> DesiredTopics:
    """Return the Topic objects of a cluster by topic name."""
    found: defaultdict[str, list[Object]] = defaultdict(list)
    for body in objects.in_cluster(TOPICS, *cluster):
        found[topic_name_of(body)].append(body)
    return DesiredTopics({name: tuple(bodies) for name, bodies in found.items()})


def topic_name_of(body: Mapping[str, Any]) -> str:
    """Return the topic name of a Topic object."""
    return str(body.get("spec", {}).get("topicName") or body["metadata"]["name"])


def name_of(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and name of an object."""
    return str(body["metadata"].get("namespace") or ""), str(body["metadata"]["name"])


def cluster_of(body: Mapping[str, Any]) -> ClusterKey:
    """Return namespace and name of the Cluster of a Topic object."""
    name = body.get("spec", {}).get("clusterRef", {}).get("name") or ""
    return str(body["metadata"].get("namespace") or ""), str(name)


def may_move(objects: Objects, cluster: ClusterKey) -> bool:
    """Whether the Cluster allows automatic moves: not paused, and `moving.automatic` is true."""
    body = objects.get(CLUSTERS, *cluster)
    spec = body.get("spec", {}) if body is not None else {}
    return not spec.get("paused") and spec.get("moving", {}).get("automatic", True) is not False


def owner_absence(
    topic: ObservedTopicState | None,
    desired: Topic | None,
    known: DesiredTopics,
    objects: Objects,
    absences: Mapping[str, int],
    kept_owners: Container[str] = (),
) -> OwnerAbsence | None:
    """Return what is known about the missing owner of a topic; None if the owner exists or the topic has none.
    `kept_owners`: UIDs of deleted objects whose topics are retained by a decision made when they were deleted. A
    DELETED event older than the present Cluster may come from a deleted namespace, so it proves no more than a list."""
    owner = topic.settings.get(OWNER) if topic is not None else None
    if topic is None or not owner or known.wants(topic.name, owner):
        return None
    if owner in kept_owners:
        return OwnerAbsence(True, "Retain", absences.get(owner, 0))
    last = objects.deleted_by_uid(TOPICS, owner)
    if last is None:
        return OwnerAbsence(lists_without=absences.get(owner, 0))
    policy = final_policy(last)
    if policy == "Delete" and not objects.has_same_cluster(TOPICS, owner):
        return OwnerAbsence(lists_without=absences.get(owner, 0))
    same_name = desired is not None and last["metadata"]["name"] == desired.metadata.name
    return OwnerAbsence(True, policy, absences.get(owner, 0), same_name)


def final_policy(body: Object) -> DeletionPolicy:
    """Return the deletion policy of a deleted object; a paused object retains its topic."""
    spec = body.get("spec", {})
    return "Delete" if spec.get("deletionPolicy") == "Delete" and not spec.get("paused") else "Retain"


async def live(kube: Kube, namespace: str) -> Sequence[Object]:
    """Return all Topics of a namespace from the API server. Raises `KubeError`."""
    return await kube.list(TOPICS, namespace)
