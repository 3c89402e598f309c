"""Reconciles many topics of one cluster together: observe, plan, execute. Used by `controller`.

After actions it observes again, so that the status written contains their results.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from penstock_operator.engine.absence import KeptOwners, is_being_torn_down
from penstock_operator.engine.outages import ClusterKey, ClusterOutages
from penstock_operator.engine.ports import Objects
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.topic import Topic, TopicStatus
from penstock_operator.ports.brokers import BrokerGateway, BrokersError, BrokerSnapshot, ObservedTopicState
from penstock_operator.ports.kube import Kube, KubeError, KubeEvent, Object
from penstock_operator.reconcile.plan import ReconcilePlan
from penstock_operator.reconcile.topic import deletion as topic_deletion
from penstock_operator.reconcile.topic.placement import replicas_after_move
from penstock_operator.reconcile.topic.reconcile import reconcile
from penstock_operator.reconcile.topic.types import CreateTopic, ObservedTopic, ReassignTopic, TopicAction
from penstock_operator.topics.action_runner import ActionOutcome, carry_out
from penstock_operator.topics.draining import DrainingTopics, Readers
from penstock_operator.topics.observation import DesiredTopics, final_policy, may_move, owner_absence

ROUNDS = 3
"""Maximum number of observe-plan-execute rounds; deleting and recreating a topic takes three."""
LEADERS_PAUSES_S = (0.1, 0.3)
"""Pauses while waiting for leaders of new partitions, so that the status does not report them offline."""
PLANNED_TOGETHER = 50
"""Number of plans computed before yielding to the event loop."""
MAX_MOVING = 200
"""Maximum number of moving partitions per cluster; the brokers throttle the moves."""
REFUSED_RETRY_S = 60.0
UNREACHABLE_RETRY_S = 20.0
PROBLEM_RETRY_S = 5.0


@dataclass(slots=True)
class TopicObservation:
    """One topic of a batch. `body` is the object, or its last version if it was deleted."""

    key: ObjectKey
    name: str
    desired: Topic | None
    body: Object
    plan: ReconcilePlan[TopicAction, TopicStatus] | None = None
    events: list[KubeEvent] = field(default_factory=list)
    failure: BrokersError | None = None
    error: str | None = None
    """Error because of which the key is retried with backoff."""
    requeue_after_s: float | None = None
    is_behind: bool = False
    """Whether the brokers do not report the effect of an action yet; the status is written later."""
    is_transient_problem: bool = False
    """Whether the brokers have been unreachable for a short time only; the status is kept."""


class TopicBatch:
    """One reconciliation of topics of one cluster."""

    def __init__(
        self,
        cluster: ClusterKey,
        brokers: BrokerGateway | None,
        kube: Kube,
        objects: Objects,
        known: DesiredTopics,
        outages: ClusterOutages,
        absences: Mapping[str, int],
        loads: Mapping[int, int] | None,
        moving: int,
        kept_owners: KeptOwners,
        draining: DrainingTopics,
    ) -> None:
        self._cluster, self._brokers, self._kube, self._objects = cluster, brokers, kube, objects
        self._known, self._outages, self._absences, self._kept_owners = known, outages, absences, kept_owners
        self._draining = draining
        self._readers: Readers = {}
        self._loads = Counter(loads) if loads is not None else None
        self._room = max(MAX_MOVING - moving, 0)
        self.moved = 0
        """Number of partitions that this batch started to move."""
        self._snapshot = BrokerSnapshot("", -1, ())
        self._may_delete: bool | None = None
        self._deletion_check_error: str | None = None

    async def run(self, observations: list[TopicObservation]) -> None:
        """Reconcile all observations and set their results. Broker and API server errors do not raise."""
        await self._check_deletions(observations)
        brokers = self._brokers
        if brokers is None:
            for observation in observations:
                self._plan_one(observation, None, None)
            return
        try:
            await self._rounds(brokers, observations)
        except BrokersError as e:
            if e.is_hibernated:
                self._plan_hibernated(observations, str(e))
                return
            self._outages.record_failure(self._cluster, str(e))
            self._plan_unreachable(observations)

    async def _check_deletions(self, observations: list[TopicObservation]) -> None:
        """Check on the DELETED event whether the object was deleted with its namespace or CRD, before brokers are
        contacted: once these are recreated, the deletion would look like a user's request."""
        for observation in observations:
            if observation.desired is not None or final_policy(observation.body) != "Delete":
                continue
            await self._check_deletion()
            if self._may_delete is False:
                self._kept_owners.add(str(observation.body["metadata"].get("uid") or ""))
            observation.error = self._deletion_check_error

    def _plan_unreachable(self, observations: list[TopicObservation]) -> None:
        lasting = self._outages.is_lasting(self._cluster)
        message = f'no broker of Cluster "{self._cluster[1]}" reports its topics; the status shows the last known state'
        for observation in observations:
            self._plan_one(observation, None, message)
            observation.is_transient_problem = (
                not lasting and observation.desired is not None and bool(observation.desired.status.conditions)
            )
            observation.requeue_after_s = UNREACHABLE_RETRY_S if lasting else PROBLEM_RETRY_S

    def _plan_hibernated(self, observations: list[TopicObservation], message: str) -> None:
        """Plan topics of a hibernated cluster: the change of the Cluster's readiness queues them again."""
        for observation in observations:
            self._plan_one(observation, None, message, is_hibernated=True)
            observation.requeue_after_s = UNREACHABLE_RETRY_S if observation.desired is None else None

    async def _rounds(self, brokers: BrokerGateway, observations: list[TopicObservation]) -> None:
        recent = self._outages.message(self._cluster)
        if recent is not None:
            self._plan_unreachable(observations)
            return
        self._snapshot = await brokers.describe_cluster()
        left = observations
        for number in range(ROUNDS):
            there = await self._describe_topics(brokers, left)
            # Only now: brokers without a controller report themselves but no topics.
            self._outages.record_answer(self._cluster)
            await self._plan_all(brokers, left, there)
            acting = {
                observation.name: observation
                for observation in left
                if observation.plan is not None and observation.plan.actions
            }
            if not acting:
                return
            if number == ROUNDS - 1:
                for observation in acting.values():
                    observation.is_behind = True
                return
            outcome = await carry_out(
                brokers, {name: observation.plan.actions for name, observation in acting.items() if observation.plan}
            )
            left = self._after(acting, outcome)
        return

    def _after(self, acting: Mapping[str, TopicObservation], outcome: ActionOutcome) -> list[TopicObservation]:
        """Store the outcome of actions. Return the observations for the next round."""
        for name, observation in acting.items():
            observation.failure = outcome.failures.get(name)
            observation.events += observation.plan.events if observation.plan is not None else ()
            observation.events += outcome.events.get(name, ())
        return [
            observation
            for observation in acting.values()
            if observation.desired is not None or observation.failure is not None
        ]

    async def _describe_topics(
        self, brokers: BrokerGateway, observations: Iterable[TopicObservation]
    ) -> dict[str, ObservedTopicState]:
        """Return the existing topics. Waits briefly until topics that were just created have leaders."""
        names = sorted({observation.name for observation in observations})
        there = await brokers.topics(names, shrinks=True)
        created = {
            observation.name
            for observation in observations
            if observation.plan and any(isinstance(a, CreateTopic) for a in observation.plan.actions)
        }
        for pause_s in LEADERS_PAUSES_S:
            late = sorted(n for n in created if n not in there or any(p.leader < 0 for p in there[n].partitions))
            if not late:
                break
            await asyncio.sleep(pause_s)
            there |= await brokers.topics(late, shrinks=True)
        return there

    async def _plan_all(
        self, brokers: BrokerGateway, observations: list[TopicObservation], there: Mapping[str, ObservedTopicState]
    ) -> None:
        if self._loads is None and any(
            self._moves(observation, there.get(observation.name)) for observation in observations
        ):
            self._loads = loads_of((await brokers.topics(settings=False)).values())
        draining = {name for name, topic in there.items() if topic.shrink and topic.shrink.state == "draining"}
        self._readers = await self._draining.readers(self._cluster, brokers, draining)
        for number, observation in enumerate(observations):
            if number % PLANNED_TOGETHER == PLANNED_TOGETHER - 1:
                await asyncio.sleep(0)
            found = there.get(observation.name)
            done = observation.plan.actions if observation.plan is not None and observation.failure is None else ()
            observed = self._observed(observation, found)
            if topic_deletion.decide_deletion(observed) == "check":
                await self._check_deletion()
            self._plan_one(observation, found, None)
            assert observation.plan is not None, "_plan_one sets the plan"
            if done and observation.plan.actions and _kinds(done) & _kinds(observation.plan.actions):
                observation.is_behind = True
                observation.error = f'topic "{observation.name}": the brokers do not report the change yet'
                observation.plan = replace(observation.plan, actions=())

    def _plan_one(
        self,
        observation: TopicObservation,
        found: ObservedTopicState | None,
        problem: str | None,
        *,
        is_hibernated: bool = False,
    ) -> None:
        observed = replace(self._observed(observation, found, problem), is_hibernated=is_hibernated)
        plan = reconcile(observation.desired, observed)
        for action in plan.actions:
            if isinstance(action, ReassignTopic) and found is not None:
                self._account_move(action, found)
        observation.plan = plan
        observation.requeue_after_s = plan.requeue_after_s
        if self._deletion_check_error is not None and topic_deletion.decide_deletion(observed) == "check":
            observation.error = self._deletion_check_error
        if observation.failure is not None:
            observation.error = str(observation.failure) if observation.failure.is_passing else None
            observation.requeue_after_s = None if observation.failure.is_passing else REFUSED_RETRY_S

    def _observed(
        self, observation: TopicObservation, found: ObservedTopicState | None, problem: str | None = None
    ) -> ObservedTopic:
        evidence = owner_absence(
            found, observation.desired, self._known, self._objects, self._absences, self._kept_owners
        )
        return ObservedTopic(
            name=observation.name,
            topic=found,
            brokers=self._snapshot.brokers,
            rivals=() if observation.desired is None else self._known.rivals(observation.desired),
            has_owner=evidence is None
            or (observation.desired is None and bool(self._known.by_topic.get(observation.name))),
            absence=None if evidence is None else replace(evidence, may_delete=self._may_delete),
            unreachable=problem,
            has_cluster=self._brokers is not None,
            loads=self._loads or {},
            room=self._room,
            may_move=may_move(self._objects, self._cluster),
            readers=self._readers.get(observation.name),
            failure=observation.failure,
        )

    async def _check_deletion(self) -> None:
        if self._may_delete is not None or self._deletion_check_error is not None:
            return
        try:
            self._may_delete = not await is_being_torn_down(self._kube, "Topic", *self._cluster)
        except KubeError as e:
            self._deletion_check_error = f"cannot check whether the namespace or the CRD is being deleted: {e}"

    def _moves(self, observation: TopicObservation, found: ObservedTopicState | None) -> bool:
        if observation.desired is None or found is None:
            return False
        return any(
            isinstance(a, ReassignTopic)
            for a in reconcile(observation.desired, self._observed(observation, found)).actions
        )

    def _account_move(self, action: ReassignTopic, found: ObservedTopicState) -> None:
        """Count new replicas per broker, so that the next topic's replicas go to less loaded brokers."""
        self.moved += len(action.targets)
        self._room = max(self._room - len(action.targets), 0)
        if self._loads is None:
            return
        for index, after in action.targets.items():
            self._loads.update(after)
            self._loads.subtract(replicas_after_move(found.partitions[index]))


def loads_of(topics: Iterable[ObservedTopicState]) -> Counter[int]:
    """Return the number of replicas by broker."""
    return Counter(b for topic in topics for p in topic.partitions for b in replicas_after_move(p))


def _kinds(actions: Iterable[TopicAction]) -> set[type[TopicAction]]:
    return {type(action) for action in actions}
