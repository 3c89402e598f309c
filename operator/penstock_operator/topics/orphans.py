"""Handles topics whose object was deleted while no operator ran; their stored policy decides. Used by `controller`.

DELETED events are handled through the queue. This module handles owners that are missing in two consecutive complete
lists, which it requests only if a topic has an unknown owner. `engine.absence` states when lists count.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace

import structlog

from penstock_operator.engine.absence import (
    INCONCLUSIVE_LIST,
    are_lists_conclusive,
    are_lists_conclusive_now,
    is_being_torn_down,
    is_list_conclusive,
)
from penstock_operator.engine.outages import ClusterKey
from penstock_operator.engine.ports import ConnectionPool, Objects
from penstock_operator.model.common import LISTS_WITHOUT, ObjectKey
from penstock_operator.ports.brokers import DELETION_POLICY, OWNER, BrokerGateway, BrokersError, ObservedTopicState
from penstock_operator.ports.kube import CLUSTERS, TOPICS, Kube, KubeError, Object
from penstock_operator.reconcile.topic.deletion import decide_deletion
from penstock_operator.reconcile.topic.reconcile import reconcile
from penstock_operator.reconcile.topic.types import ObservedTopic, TopicAction
from penstock_operator.topics.action_runner import carry_out
from penstock_operator.topics.observation import (
    DesiredTopics,
    cluster_of,
    desired_topics,
    final_policy,
    live,
    name_of,
    owner_absence,
    topic_name_of,
)

log = structlog.get_logger("penstock.operator.topics")


class OrphanedTopics:
    """Finds and handles orphaned topics. `absences` counts consecutive complete lists without an owner, by UID; this
    class writes it, others read it. `wall` returns Unix time in seconds."""

    def __init__(
        self,
        kube: Kube,
        objects: Objects,
        connections: ConnectionPool,
        absences: dict[str, int],
        put: Callable[[ObjectKey], None],
        wall: Callable[[], float],
        kept_owners: Container[str] = (),
    ) -> None:
        self._kube, self._objects, self._connections = kube, objects, connections
        self._absences, self._put, self._wall, self._kept_owners = absences, put, wall, kept_owners
        self._reported_namespaces: set[str] = set()
        """Namespaces with inconclusive lists that were logged."""

    async def delete_orphans(self) -> None:
        """Check each cluster and delete or retain its orphaned topics. An error in one cluster is logged, not
        raised."""
        if not self._objects.is_listed(TOPICS):
            return  # absence means nothing yet
        suspects: dict[ClusterKey, dict[str, ObservedTopicState]] = {}
        clusters = {
            name_of(body): body
            for body in self._objects.list_objects(CLUSTERS)
            if are_lists_conclusive(body, self._wall())
        }
        for cluster in clusters:
            found = await self._suspects(cluster)
            if found:
                suspects[cluster] = found
        planned = await self._count(suspects)
        for cluster, topics in suspects.items():
            left = {name: topic for name, topic in topics.items() if (cluster, name) not in planned}
            try:
                await self._reconcile_orphans(cluster, clusters[cluster], left)
            except (BrokersError, KubeError) as e:
                log.warning("cannot handle orphaned topics", namespace=cluster[0], cluster=cluster[1], error=str(e))

    async def _suspects(self, cluster: ClusterKey) -> dict[str, ObservedTopicState]:
        """Return topics with the policy Delete that have neither a known owner nor another object."""
        brokers = self._connections.gateway_for(*cluster)
        if brokers is None:
            return {}
        try:
            topics = await brokers.topics(settings=(OWNER, DELETION_POLICY))
        except BrokersError as e:
            if not e.is_hibernated:
                log.warning("cannot list topics", namespace=cluster[0], cluster=cluster[1], error=str(e))
            return {}
        known = desired_topics(self._objects, cluster)
        found: dict[str, ObservedTopicState] = {}
        for name, topic in topics.items():
            owner = topic.settings.get(OWNER)
            if not owner or topic.settings.get(DELETION_POLICY) != "Delete" or known.wants(name, owner):
                continue
            last = self._objects.deleted_by_uid(TOPICS, owner)
            if last is not None and (final_policy(last) != "Delete" or self._objects.has_same_cluster(TOPICS, owner)):
                self._put(ObjectKey("Topic", cluster[0], str(last["metadata"]["name"])))
            elif not known.by_topic.get(name):
                found[name] = topic
        return found

    async def _count(
        self, suspects: Mapping[ClusterKey, Mapping[str, ObservedTopicState]]
    ) -> set[tuple[ClusterKey, str]]:
        """List the affected namespaces and update `absences`. Return the (cluster, topic) pairs that have an object,
        including objects that no watch has reported yet, such as restored ones."""
        planned: set[tuple[ClusterKey, str]] = set()
        owners: dict[str, set[str]] = {}
        for (namespace, _), topics in sorted(suspects.items()):
            owners.setdefault(namespace, set()).update(topic.settings[OWNER] for topic in topics.values())
        for known in self._absences.keys() - set().union(*owners.values()):
            del self._absences[known]
        for namespace, of_namespace in owners.items():
            try:
                bodies = await live(self._kube, namespace)
            except KubeError as e:  # incomplete list: count and delete nothing
                log.warning("cannot list Topics; orphaned topics are kept", namespace=namespace, error=str(e))
                planned.update((at, name) for at, topics in suspects.items() if at[0] == namespace for name in topics)
                continue
            there = {str(body["metadata"].get("uid")) for body in bodies}
            planned.update((cluster_of(body), topic_name_of(body)) for body in bodies)
            is_conclusive = is_list_conclusive(bodies, self._wall())
            self._log_kept(namespace, suspects, of_namespace - there, is_conclusive)
            for owner in of_namespace:
                # A retained topic needs no evidence: only its stored policy is changed.
                if owner in there or not (is_conclusive or owner in self._kept_owners):
                    self._absences.pop(owner, None)
                else:
                    self._absences[owner] = self._absences.get(owner, 0) + 1
        return planned

    def _log_kept(
        self,
        namespace: str,
        suspects: Mapping[ClusterKey, Mapping[str, ObservedTopicState]],
        lacking: set[str],
        is_conclusive: bool,
    ) -> None:
        """Log once per namespace that orphaned topics are kept because its lists are inconclusive."""
        if is_conclusive or not lacking:
            self._reported_namespaces.discard(namespace)
        elif namespace not in self._reported_namespaces:
            self._reported_namespaces.add(namespace)
            names = [
                name
                for (cluster_namespace, _), topics in suspects.items()
                for name, topic in topics.items()
                if cluster_namespace == namespace and topic.settings[OWNER] in lacking
            ]
            count, such_as = len(names), names[:5]
            log.warning(
                "orphaned topics are kept", namespace=namespace, topics=count, such_as=such_as, why=INCONCLUSIVE_LIST
            )

    async def _reconcile_orphans(
        self, cluster: ClusterKey, body: Object, topics: Mapping[str, ObservedTopicState]
    ) -> None:
        brokers = self._connections.gateway_for(*cluster)
        due = {n: t for n, t in topics.items() if self._absences.get(t.settings[OWNER], 0) >= LISTS_WITHOUT}
        if brokers is None or not due:
            return
        if not await are_lists_conclusive_now(self._kube, *cluster, self._wall()):
            return
        may = not await is_being_torn_down(self._kube, "Topic", *cluster)
        known = desired_topics(self._objects, cluster)
        planned: dict[str, tuple[TopicAction, ...]] = {}
        for name, topic in due.items():
            observed = self._observed(name, topic, known, may)
            if decide_deletion(observed) in ("delete", "protect"):
                planned[name] = reconcile(None, observed).actions
        await self._carry_out(brokers, cluster, body, planned)

    def _observed(self, name: str, topic: ObservedTopicState, known: DesiredTopics, may: bool) -> ObservedTopic:
        evidence = owner_absence(topic, None, known, self._objects, self._absences, self._kept_owners)
        return ObservedTopic(
            name,
            topic,
            has_owner=bool(known.by_topic.get(name)),
            absence=None if evidence is None else replace(evidence, may_delete=may),
        )

    async def _carry_out(
        self, brokers: BrokerGateway, cluster: ClusterKey, body: Object, planned: Mapping[str, tuple[TopicAction, ...]]
    ) -> None:
        outcome = await carry_out(brokers, planned)
        for name, error in outcome.failures.items():
            log.warning("failed to delete an orphaned topic", namespace=cluster[0], topic=name, error=str(error))
        events = [event for events in outcome.events.values() for event in events]
        if events:
            await self._kube.record_events(body, events)
