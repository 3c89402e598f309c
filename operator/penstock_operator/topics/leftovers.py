"""Topics whose object went while nobody looked: what is stored with them decides. Used by `controller`.

An event that came is dealt with by its key. Here is what no event proves: an owner that is missing from two complete
lists in a row, which are asked for only where there is a topic whose owner is not known. Clusters that were made a
moment ago are left out, and lists without a Topic that was not: Topics may be on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace

import structlog

from penstock_operator.engine.absence import (
    NO_PROOF,
    do_lists_count,
    do_lists_count_now,
    does_list_count,
    is_taken_down,
)
from penstock_operator.engine.ports import ConnectionPool, Objects
from penstock_operator.model.common import LISTS_WITHOUT, ObjectKey
from penstock_operator.ports.brokers import DELETION_POLICY, OWNER, BrokerGateway, BrokersError, ObservedTopicState
from penstock_operator.ports.kube import CLUSTERS, TOPICS, Kube, KubeError, Object
from penstock_operator.reconcile.topic.deletion import fate
from penstock_operator.reconcile.topic.reconcile import reconcile
from penstock_operator.reconcile.topic.types import ObservedTopic, TopicAction
from penstock_operator.topics.action_runner import carry_out
from penstock_operator.topics.observation import (
    TopicDesires,
    cluster_of,
    gone,
    last_word,
    live,
    name_of,
    topic_name_of,
    wishes,
)
from penstock_operator.topics.problems import ClusterKey

log = structlog.get_logger("penstock.operator.topics")


class Leftovers:
    """`absences` has, by owner, how many complete lists in a row lacked it; kept here, read by all. `wall` is the wall
    clock in seconds."""

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
        self._told: set[str] = set()
        """Namespaces whose lists prove nothing, as was said."""

    async def sweep(self) -> None:
        """One look at each cluster. Never raises for one of them."""
        if not self._objects.is_listed(TOPICS):
            return  # absence means nothing yet
        suspects: dict[ClusterKey, dict[str, ObservedTopicState]] = {}
        clusters = {name_of(body): body for body in self._objects.of(CLUSTERS) if do_lists_count(body, self._wall())}
        for cluster in clusters:
            found = await self._suspects(cluster)
            if found:
                suspects[cluster] = found
        wanted = await self._count(suspects)
        for cluster, topics in suspects.items():
            left = {name: topic for name, topic in topics.items() if (cluster, name) not in wanted}
            try:
                await self._settle(cluster, clusters[cluster], left)
            except (BrokersError, KubeError) as e:
                log.warning("topics.leftovers", namespace=cluster[0], cluster=cluster[1], error=str(e))

    async def _suspects(self, cluster: ClusterKey) -> dict[str, ObservedTopicState]:
        """Topics to be deleted with their object, and no such object is known, nor one that wants the topic."""
        brokers = self._connections.of(*cluster)
        if brokers is None:
            return {}
        try:
            topics = await brokers.topics(settings=(OWNER, DELETION_POLICY))
        except BrokersError as e:
            log.warning("topics.leftovers", namespace=cluster[0], cluster=cluster[1], error=str(e))
            return {}
        known = wishes(self._objects, cluster)
        found: dict[str, ObservedTopicState] = {}
        for name, topic in topics.items():
            owner = topic.settings.get(OWNER)
            if not owner or topic.settings.get(DELETION_POLICY) != "Delete" or known.wants(name, owner):
                continue
            last = self._objects.deleted_of_uid(TOPICS, owner)
            if last is not None and (last_word(last) != "Delete" or self._objects.has_same_cluster(TOPICS, owner)):
                self._put(ObjectKey("Topic", cluster[0], str(last["metadata"]["name"])))
            elif not known.by_topic.get(name):
                found[name] = topic
        return found

    async def _count(
        self, suspects: Mapping[ClusterKey, Mapping[str, ObservedTopicState]]
    ) -> set[tuple[ClusterKey, str]]:
        """Asks the API server for a complete list of each namespace in question. Returns which topics of which clusters
        an object wants there: also one that no watch has told of yet, such as one restored just now."""
        wanted: set[tuple[ClusterKey, str]] = set()
        owners: dict[str, set[str]] = {}
        for (namespace, _), topics in sorted(suspects.items()):
            owners.setdefault(namespace, set()).update(topic.settings[OWNER] for topic in topics.values())
        for known in self._absences.keys() - set().union(*owners.values()):
            del self._absences[known]
        for namespace, of_namespace in owners.items():
            try:
                bodies = await live(self._kube, namespace)
            except KubeError as e:  # not a complete list: nothing is counted, and nothing settled
                log.warning("topics.leftovers", namespace=namespace, error=str(e))
                wanted.update((at, name) for at, topics in suspects.items() if at[0] == namespace for name in topics)
                continue
            there = {str(body["metadata"].get("uid")) for body in bodies}
            wanted.update((cluster_of(body), topic_name_of(body)) for body in bodies)
            counts = does_list_count(bodies, self._wall())
            self._tell(namespace, suspects, of_namespace - there, counts)
            for owner in of_namespace:
                # One that is known to have gone, and whose topic stays, needs no proof: what is stored is put right.
                if owner in there or not (counts or owner in self._kept_owners):
                    self._absences.pop(owner, None)
                else:
                    self._absences[owner] = self._absences.get(owner, 0) + 1
        return wanted

    def _tell(
        self,
        namespace: str,
        suspects: Mapping[ClusterKey, Mapping[str, ObservedTopicState]],
        lacking: set[str],
        counts: bool,
    ) -> None:
        """Says once of a namespace that topics are kept whose objects may have been deleted."""
        if counts or not lacking:
            self._told.discard(namespace)
        elif namespace not in self._told:
            self._told.add(namespace)
            names = [
                name
                for (of, _), topics in suspects.items()
                for name, topic in topics.items()
                if of == namespace and topic.settings[OWNER] in lacking
            ]
            count, such_as = len(names), names[:5]
            log.warning("topics.leftovers.kept", namespace=namespace, topics=count, such_as=such_as, why=NO_PROOF)

    async def _settle(self, cluster: ClusterKey, body: Object, topics: Mapping[str, ObservedTopicState]) -> None:
        brokers = self._connections.of(*cluster)
        due = {n: t for n, t in topics.items() if self._absences.get(t.settings[OWNER], 0) >= LISTS_WITHOUT}
        if brokers is None or not due:
            return
        if not await do_lists_count_now(self._kube, *cluster, self._wall()):
            return
        may = not await is_taken_down(self._kube, "Topic", *cluster)
        known = wishes(self._objects, cluster)
        wanted: dict[str, tuple[TopicAction, ...]] = {}
        for name, topic in due.items():
            observed = self._observed(name, topic, known, may)
            if fate(observed) in ("delete", "protect"):
                wanted[name] = reconcile(None, observed).actions
        await self._carry_out(brokers, cluster, body, wanted)

    def _observed(self, name: str, topic: ObservedTopicState, known: TopicDesires, may: bool) -> ObservedTopic:
        evidence = gone(topic, None, known, self._objects, self._absences, self._kept_owners)
        return ObservedTopic(
            name,
            topic,
            owner_is_there=bool(known.by_topic.get(name)),
            gone=None if evidence is None else replace(evidence, may_delete=may),
        )

    async def _carry_out(
        self, brokers: BrokerGateway, cluster: ClusterKey, body: Object, wanted: Mapping[str, tuple[TopicAction, ...]]
    ) -> None:
        outcome = await carry_out(brokers, wanted)
        for name, error in outcome.failures.items():
            log.warning("topics.leftover.kept", namespace=cluster[0], topic=name, error=str(error))
        told = [happening for happenings in outcome.happenings.values() for happening in happenings]
        if told:
            await self._kube.tell(body, told)
