"""One look at many topics of one cluster: what is there, what follows, and having it done. Used by `controller`.

After actions what is there is asked again, so that one status says what came of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from penstock_operator.engine.absence import KeptOwners, is_taken_down
from penstock_operator.engine.ports import Objects
from penstock_operator.model.common import ObjectKey
from penstock_operator.model.topic import Topic, TopicStatus
from penstock_operator.ports.brokers import BrokerGateway, BrokersError, BrokerSnapshot, ObservedTopicState
from penstock_operator.ports.kube import Kube, KubeError, KubeEvent, Object
from penstock_operator.reconcile.plan import ReconcilePlan
from penstock_operator.reconcile.topic import deletion as topic_deletion
from penstock_operator.reconcile.topic.placement import wanted_replicas
from penstock_operator.reconcile.topic.reconcile import reconcile
from penstock_operator.reconcile.topic.types import CreateTopic, ObservedTopic, ReassignTopic, TopicAction
from penstock_operator.topics.action_runner import ActionOutcome, carry_out
from penstock_operator.topics.observation import TopicDesires, gone, last_word, may_move
from penstock_operator.topics.problems import ClusterKey, TopicProblems

ROUNDS = 3
"""Looks, each with what follows from it: a topic that is deleted and created again needs three."""
LEADERS_PAUSES_S = (0.1, 0.3)
"""Waits for a new topic's partitions to have leaders, before a status says that they have none."""
PLANNED_TOGETHER = 50
"""Without letting others go on."""
MAX_MOVING = 200
"""Partitions of a cluster that move at a time: how fast they do is bounded by the brokers."""
REFUSED_LOOK_S = 60.0
UNREACHABLE_LOOK_S = 20.0
SOON_AFTER_TROUBLE_S = 5.0


@dataclass(slots=True)
class TopicObservation:
    """One topic that is looked at. `body` is the object, or what it was when it was deleted."""

    key: ObjectKey
    name: str
    desired: Topic | None
    body: Object
    plan: ReconcilePlan[TopicAction, TopicStatus] | None = None
    happenings: list[KubeEvent] = field(default_factory=list)
    failure: BrokersError | None = None
    error: str | None = None
    """Why it is to be tried again after a pause."""
    look_again_s: float | None = None
    is_behind: bool = False
    """Whether something was done that brokers do not show yet: the status waits for it."""
    is_short_trouble: bool = False


class TopicBatch:
    def __init__(
        self,
        cluster: ClusterKey,
        brokers: BrokerGateway | None,
        kube: Kube,
        objects: Objects,
        known: TopicDesires,
        troubles: TopicProblems,
        absences: Mapping[str, int],
        loads: Mapping[int, int] | None,
        moving: int,
        kept_owners: KeptOwners,
    ) -> None:
        self._cluster, self._brokers, self._kube, self._objects = cluster, brokers, kube, objects
        self._known, self._troubles, self._absences, self._kept_owners = known, troubles, absences, kept_owners
        self._loads = Counter(loads) if loads is not None else None
        self._room = max(MAX_MOVING - moving, 0)
        self.moved = 0
        """Partitions that begin to move."""
        self._picture = BrokerSnapshot("", -1, ())
        self._may_delete: bool | None = None
        self._may_not_tell: str | None = None

    async def run(self, looks: list[TopicObservation]) -> None:
        """Fills in what came of each. Never raises for brokers or the API server."""
        await self._settle_deletions(looks)
        brokers = self._brokers
        if brokers is None:
            for look in looks:
                self._plan_one(look, None, None)
            return
        try:
            await self._rounds(brokers, looks)
        except BrokersError as e:
            self._troubles.failed(self._cluster, str(e))
            self._in_trouble(looks)

    async def _settle_deletions(self, looks: list[TopicObservation]) -> None:
        """Finds out, when an object's DELETED event comes, whether it went with its namespace or definition, whatever
        the brokers say: later, when they answer and these are back, it would look like somebody's wish."""
        for look in looks:
            if look.desired is not None or last_word(look.body) != "Delete":
                continue
            await self._check_deletion()
            if self._may_delete is False:
                self._kept_owners.note(str(look.body["metadata"].get("uid") or ""))
            look.error = self._may_not_tell

    def _in_trouble(self, looks: list[TopicObservation]) -> None:
        lasting = self._troubles.is_lasting(self._cluster)
        message = (
            f"no broker of Cluster {self._cluster[1]} tells of its topics; what was last known of this one is shown"
        )
        for look in looks:
            self._plan_one(look, None, message)
            look.is_short_trouble = not lasting and look.desired is not None and bool(look.desired.status.conditions)
            look.look_again_s = UNREACHABLE_LOOK_S if lasting else SOON_AFTER_TROUBLE_S

    async def _rounds(self, brokers: BrokerGateway, looks: list[TopicObservation]) -> None:
        recent = self._troubles.message(self._cluster)
        if recent is not None:
            self._in_trouble(looks)
            return
        self._picture = await brokers.picture()
        left = looks
        for number in range(ROUNDS):
            there = await self._topics(brokers, left)
            # Not before: brokers that say who they are and nothing of topics, for want of a controller, are a trouble.
            self._troubles.answered(self._cluster)
            await self._plan_all(brokers, left, there)
            acting = {look.name: look for look in left if look.plan is not None and look.plan.actions}
            if not acting:
                return
            if number == ROUNDS - 1:
                for look in acting.values():
                    look.is_behind = True
                return
            outcome = await carry_out(brokers, {name: look.plan.actions for name, look in acting.items() if look.plan})
            left = self._after(acting, outcome)
        return

    def _after(self, acting: Mapping[str, TopicObservation], outcome: ActionOutcome) -> list[TopicObservation]:
        """What is to be looked at once more."""
        for name, look in acting.items():
            look.failure = outcome.failures.get(name)
            look.happenings += look.plan.happenings if look.plan is not None else ()
            look.happenings += outcome.happenings.get(name, ())
        return [look for look in acting.values() if look.desired is not None or look.failure is not None]

    async def _topics(self, brokers: BrokerGateway, looks: Iterable[TopicObservation]) -> dict[str, ObservedTopicState]:
        """What is there. Topics that were created just now are waited for a little, until they have leaders."""
        names = sorted({look.name for look in looks})
        there = await brokers.topics(names)
        created = {
            look.name for look in looks if look.plan and any(isinstance(a, CreateTopic) for a in look.plan.actions)
        }
        for pause_s in LEADERS_PAUSES_S:
            late = sorted(n for n in created if n not in there or any(p.leader < 0 for p in there[n].partitions))
            if not late:
                break
            await asyncio.sleep(pause_s)
            there |= await brokers.topics(late)
        return there

    async def _plan_all(
        self, brokers: BrokerGateway, looks: list[TopicObservation], there: Mapping[str, ObservedTopicState]
    ) -> None:
        if self._loads is None and any(self._moves(look, there.get(look.name)) for look in looks):
            self._loads = loads_of((await brokers.topics(settings=False)).values())
        for number, look in enumerate(looks):
            if number % PLANNED_TOGETHER == PLANNED_TOGETHER - 1:
                await asyncio.sleep(0)
            found = there.get(look.name)
            done = look.plan.actions if look.plan is not None and look.failure is None else ()
            observed = self._observed(look, found)
            if topic_deletion.fate(observed) == "check":
                await self._check_deletion()
            self._plan_one(look, found, None)
            assert look.plan is not None, "it was planned"
            if done and look.plan.actions and _kinds(done) & _kinds(look.plan.actions):
                look.is_behind = True
                look.error = f"topic {look.name}: the brokers do not show yet what was done"
                look.plan = replace(look.plan, actions=())

    def _plan_one(self, look: TopicObservation, found: ObservedTopicState | None, trouble: str | None) -> None:
        observed = self._observed(look, found, trouble)
        plan = reconcile(look.desired, observed)
        for action in plan.actions:
            if isinstance(action, ReassignTopic) and found is not None:
                self._take_note(action, found)
        look.plan = plan
        look.look_again_s = plan.look_again_s
        if self._may_not_tell is not None and topic_deletion.fate(observed) == "check":
            look.error = self._may_not_tell
        if look.failure is not None:
            look.error = str(look.failure) if look.failure.is_passing else None
            look.look_again_s = None if look.failure.is_passing else REFUSED_LOOK_S

    def _observed(
        self, look: TopicObservation, found: ObservedTopicState | None, trouble: str | None = None
    ) -> ObservedTopic:
        evidence = gone(found, look.desired, self._known, self._objects, self._absences, self._kept_owners)
        return ObservedTopic(
            name=look.name,
            topic=found,
            brokers=self._picture.brokers,
            rivals=() if look.desired is None else self._known.rivals(look.desired),
            owner_is_there=evidence is None or (look.desired is None and bool(self._known.by_topic.get(look.name))),
            gone=None if evidence is None else replace(evidence, may_delete=self._may_delete),
            trouble=trouble,
            has_cluster=self._brokers is not None,
            loads=self._loads or {},
            room=self._room,
            may_move=may_move(self._objects, self._cluster),
            failure=look.failure,
        )

    async def _check_deletion(self) -> None:
        if self._may_delete is not None or self._may_not_tell is not None:
            return
        try:
            self._may_delete = not await is_taken_down(self._kube, "Topic", *self._cluster)
        except KubeError as e:
            self._may_not_tell = f"cannot tell whether the namespace or the resource definition is going: {e}"

    def _moves(self, look: TopicObservation, found: ObservedTopicState | None) -> bool:
        if look.desired is None or found is None:
            return False
        return any(isinstance(a, ReassignTopic) for a in reconcile(look.desired, self._observed(look, found)).actions)

    def _take_note(self, action: ReassignTopic, found: ObservedTopicState) -> None:
        """Of where replicas go: the next topic's go where there are fewer."""
        self.moved += len(action.targets)
        self._room = max(self._room - len(action.targets), 0)
        if self._loads is None:
            return
        for index, after in action.targets.items():
            self._loads.update(after)
            self._loads.subtract(wanted_replicas(found.partitions[index]))


def loads_of(topics: Iterable[ObservedTopicState]) -> Counter[int]:
    """Replicas by broker."""
    return Counter(b for topic in topics for p in topic.partitions for b in wanted_replicas(p))


def _kinds(actions: Iterable[TopicAction]) -> set[type[TopicAction]]:
    return {type(action) for action in actions}
