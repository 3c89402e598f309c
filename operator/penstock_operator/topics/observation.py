"""Finds out what `reconcile.topic` has to know of many topics of one cluster. Used by `controller` and `leftovers`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock_operator.engine.ports import Objects
from penstock_operator.model.common import DeletionPolicy
from penstock_operator.model.parse import InvalidResource, parse
from penstock_operator.model.topic import Topic
from penstock_operator.ports.brokers import OWNER, ObservedTopicState
from penstock_operator.ports.kube import CLUSTERS, TOPICS, Kube, Object
from penstock_operator.reconcile.topic.types import TopicGoneReason
from penstock_operator.topics.problems import ClusterKey


@dataclass(frozen=True, slots=True)
class TopicDesires:
    """The objects of a cluster by the topic that they want."""

    by_topic: Mapping[str, tuple[Object, ...]]

    def wants(self, name: str, uid: str) -> bool:
        return any(o["metadata"].get("uid") == uid for o in self.by_topic.get(name, ()))

    def rivals(self, of: Topic) -> tuple[Topic, ...]:
        found = []
        for other in self.by_topic.get(of.topic_name, ()):
            if other["metadata"].get("uid") != of.metadata.uid:
                try:
                    found.append(parse("Topic", other))
                except InvalidResource:
                    continue
        return tuple(found)


def wishes(objects: Objects, cluster: ClusterKey) -> TopicDesires:
    found: defaultdict[str, list[Object]] = defaultdict(list)
    for body in objects.in_cluster(TOPICS, *cluster):
        found[topic_name_of(body)].append(body)
    return TopicDesires({name: tuple(bodies) for name, bodies in found.items()})


def topic_name_of(body: Mapping[str, Any]) -> str:
    return str(body.get("spec", {}).get("topicName") or body["metadata"]["name"])


def name_of(body: Mapping[str, Any]) -> tuple[str, str]:
    """Namespace and name."""
    return str(body["metadata"].get("namespace") or ""), str(body["metadata"]["name"])


def cluster_of(body: Mapping[str, Any]) -> ClusterKey:
    name = body.get("spec", {}).get("clusterRef", {}).get("name") or ""
    return str(body["metadata"].get("namespace") or ""), str(name)


def may_move(objects: Objects, cluster: ClusterKey) -> bool:
    """Whether the `Cluster` lets replicas be moved without being asked."""
    body = objects.get(CLUSTERS, *cluster)
    spec = body.get("spec", {}) if body is not None else {}
    return not spec.get("paused") and spec.get("moving", {}).get("automatic", True) is not False


def gone(
    topic: ObservedTopicState | None,
    desired: Topic | None,
    known: TopicDesires,
    objects: Objects,
    absences: Mapping[str, int],
    kept_owners: Container[str] = (),
) -> TopicGoneReason | None:
    """What is known of the object that a topic belongs to; None where it is there, or where the topic is nobody's.
    `kept_owners` has the UIDs of deleted objects whose topics stay, for longer than `objects` has them: what was found
    out when they went counts, whatever is true now. A DELETED event from before the present `Cluster` was there may
    have been of a namespace that went: it proves no more than a list."""
    owner = topic.settings.get(OWNER) if topic is not None else None
    if topic is None or not owner or known.wants(topic.name, owner):
        return None
    if owner in kept_owners:
        return TopicGoneReason(True, "Retain", absences.get(owner, 0))
    last = objects.deleted_of_uid(TOPICS, owner)
    if last is None:
        return TopicGoneReason(lists_without=absences.get(owner, 0))
    policy = last_word(last)
    if policy == "Delete" and not objects.has_same_cluster(TOPICS, owner):
        return TopicGoneReason(lists_without=absences.get(owner, 0))
    same_name = desired is not None and last["metadata"]["name"] == desired.metadata.name
    return TopicGoneReason(True, policy, absences.get(owner, 0), same_name)


def last_word(body: Object) -> DeletionPolicy:
    """What a deleted object said of its topic: nothing is done for one that was paused."""
    spec = body.get("spec", {})
    return "Delete" if spec.get("deletionPolicy") == "Delete" and not spec.get("paused") else "Retain"


async def live(kube: Kube, namespace: str) -> Sequence[Object]:
    """All Topics of a namespace, by a complete list of the API server's own. Raises `KubeError`."""
    return await kube.list(TOPICS, namespace)
