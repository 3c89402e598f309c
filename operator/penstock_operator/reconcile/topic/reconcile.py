"""What is to be done about one topic: pure, from the object and what the brokers report. Called by `topics`.

Level-triggered: the same pair gives the same plan, whatever happened before; a topic that is as it is wanted gives no
action and an unchanged status.
"""

from __future__ import annotations

import msgspec

from penstock_operator.model.common import Condition
from penstock_operator.model.topic import Topic, TopicStatus
from penstock_operator.ports.brokers import DELETION_POLICY, OWNER, ObservedTopicState, TopicCreation
from penstock_operator.ports.kube import KubeEvent
from penstock_operator.reconcile.plan import ReconcilePlan
from penstock_operator.reconcile.topic import deletion as deletion
from penstock_operator.reconcile.topic import placement as placement
from penstock_operator.reconcile.topic import settings as settings
from penstock_operator.reconcile.topic import status as status
from penstock_operator.reconcile.topic.types import (
    AddPartitions,
    AlterTopicConfig,
    CreateTopic,
    ObservedTopic,
    ReassignTopic,
    TopicAction,
)

TopicPlan = ReconcilePlan[TopicAction, TopicStatus]

NO_CLUSTER_LOOK_S = 15.0
SHORT_LOOK_S = 15.0
"""When brokers are missing that a topic waits for."""
MOVING_LOOK_S = 3.0
SOON_S = 0.5


def reconcile(desired: Topic | None, observed: ObservedTopic) -> TopicPlan:
    """None: no object wants the topic; its status is of no use then."""
    if desired is None:
        return deletion.plan(observed) if observed.failure is None else ReconcilePlan(TopicStatus())
    return _with_transitions(desired, _planned(desired, observed))


def _planned(desired: Topic, observed: ObservedTopic) -> TopicPlan:
    if not observed.has_cluster:
        name = desired.spec.cluster_ref.name
        message = f"there is no Cluster {name!r} in this namespace: create it, or name another in clusterRef"
        return ReconcilePlan(status.unknown(desired, "ClusterNotFound", message), look_again_s=NO_CLUSTER_LOOK_S)
    winner = winner_of(desired, observed.rivals)
    if winner is not None:
        return _conflict(desired, winner, observed)
    if observed.trouble is not None:
        return ReconcilePlan(status.unknown(desired, "Unreachable", observed.trouble))
    if observed.topic is None:
        return _missing(desired, observed)
    if _is_to_go_first(observed):
        return _deleted_first(desired, observed)
    return _there(desired, observed, observed.topic)


def winner_of(desired: Topic, rivals: tuple[Topic, ...]) -> Topic | None:
    """The object that has the topic, where it is another."""
    first = min((desired, *rivals), key=claim)
    return None if first.metadata.uid == desired.metadata.uid else first


def claim(topic: Topic) -> tuple[str, bool, str]:
    """The least of those of all objects for a topic has it: the oldest; of those made in one second, which is as finely
    as an API server tells, the one that has had it; else the lesser UID."""
    return topic.metadata.creation_timestamp, topic.status.topic_id is None, topic.metadata.uid


def _conflict(desired: Topic, winner: Topic, observed: ObservedTopic) -> TopicPlan:
    message = (
        f"topic {desired.topic_name} belongs to Topic {winner.metadata.name}, which came first: delete one of the two,"
        " or give another topicName"
    )
    numbers = TopicStatus(topic_name=desired.topic_name)
    conditions = [
        status.condition(status.SYNCED, "False", "Conflict", message, desired),
        status.condition(status.HEALTHY, "Unknown", "Conflict", message, desired),
        status.condition(status.PROGRESSING, "False", "Conflict", message, desired),
    ]
    return ReconcilePlan(status.with_all(numbers, desired, *conditions))


# A topic that is not there


def _missing(desired: Topic, observed: ObservedTopic) -> TopicPlan:
    spec = desired.spec
    if spec.paused or desired.metadata.deletion_timestamp is not None:
        why = "paused" if spec.paused else "being deleted"
        message = f"the brokers have no topic {desired.topic_name}, and this object is {why}"
        return ReconcilePlan(status.absent(desired, "Paused" if spec.paused else "Deleting", message))
    if observed.failure is not None:
        # Asked first, as brokers place replicas also on one that restarts.
        short = _too_few_brokers(spec.replicas, observed)
        if short is not None and not observed.failure.is_passing:
            return ReconcilePlan(status.absent(desired, "TooFewBrokers", short), look_again_s=SHORT_LOOK_S)
        refused = status.refusal(desired, observed.failure)
        return ReconcilePlan(status.absent(desired, refused.reason, refused.message))
    new = TopicCreation(
        desired.topic_name, spec.partitions, spec.replicas, {**spec.config, **settings.ownership(desired)}
    )
    happening = KubeEvent("Normal", "Created", f"created topic {desired.topic_name}")
    if desired.status.topic_id is not None:
        happening = KubeEvent(
            "Warning",
            "Recreated",
            f"topic {desired.topic_name} was deleted by somebody else: created it again, empty and with another id",
        )
    message = f"topic {desired.topic_name} is being created"
    return ReconcilePlan(
        status.absent(desired, "Creating", message, is_coming=True), (CreateTopic(new, happening),), look_again_s=SOON_S
    )


def _too_few_brokers(replicas: int | None, observed: ObservedTopic) -> str | None:
    there = placement.usable(observed.brokers)
    if replicas is None or replicas <= there:
        return None
    return (
        f"{replicas} replicas are wanted, and {there} broker(s) may take any: add brokers to the Cluster, or ask for at"
        f" most {there}"
    )


# A topic that belonged to an object of the same name, deleted with its records to go


def _is_to_go_first(observed: ObservedTopic) -> bool:
    gone = observed.gone
    if gone is None or not (gone.same_name and gone.was_deleted):
        return False
    return deletion.fate(observed) in ("check", "delete")


def _deleted_first(desired: Topic, observed: ObservedTopic) -> TopicPlan:
    message = (
        f"topic {desired.topic_name} is of a deleted object of this name, with deletionPolicy Delete: it goes first,"
        " then another is created"
    )
    waiting = status.absent(desired, "Replacing", message, is_coming=True)
    if desired.spec.paused:
        return ReconcilePlan(status.absent(desired, "Paused", f"{message}, once this object is not paused"))
    if deletion.fate(observed) == "check":
        return ReconcilePlan(waiting, look_again_s=SOON_S)
    if observed.failure is not None:
        refused = status.refusal(desired, observed.failure)
        return ReconcilePlan(status.absent(desired, refused.reason, refused.message))
    return ReconcilePlan(waiting, (deletion.deletion(observed),), look_again_s=SOON_S)


# A topic that is there


def _there(desired: Topic, observed: ObservedTopic, topic: ObservedTopicState) -> TopicPlan:
    kept = settings.kept_settings(desired, topic.settings)
    numbers = msgspec.structs.replace(status.counted(topic), kept_settings=kept)
    actions, obstacle = _actions(desired, observed, topic, kept)
    happenings = _identity(desired, topic)
    progressing = status.progress(numbers, desired)
    if desired.spec.paused:
        note = settings.kept_while_paused(desired, topic.settings)
        synced = _paused(desired, _without_note(actions), obstacle)
        actions = (AlterTopicConfig(note, None),) if note and observed.failure is None else ()
    elif observed.failure is not None:
        synced = status.refusal(desired, observed.failure)
        actions = ()
    elif actions:
        synced = status.condition(status.SYNCED, "False", "Applying", _in_words(actions), desired)
        progressing = status.condition(status.PROGRESSING, "True", "Applying", synced.message, desired)
    else:
        synced = obstacle or _synced(desired, topic)
    made = status.with_all(numbers, desired, synced, status.health(numbers, desired), progressing)
    if actions and kept and not set(kept) <= set(desired.status.kept_settings):
        # What an adopted topic keeps is written down before the topic becomes this object's: a crash in between must
        # not make settings look like this object's own, and take them back.
        return ReconcilePlan(made, (), happenings, look_again_s=SOON_S)
    look_s = SOON_S if actions else MOVING_LOOK_S if numbers.moving else None
    if obstacle is not None and obstacle.reason == "TooFewBrokers":
        look_s = look_s or SHORT_LOOK_S
    return ReconcilePlan(made, actions, happenings, look_again_s=look_s)


def _actions(
    desired: Topic, observed: ObservedTopic, topic: ObservedTopicState, kept: tuple[str, ...]
) -> tuple[tuple[TopicAction, ...], Condition | None]:
    """What is to be done, and what cannot be (the condition that says so)."""
    actions: list[TopicAction] = []
    obstacle: Condition | None = None
    changes = settings.changes(desired, topic.settings, kept)
    if changes:
        actions.append(AlterTopicConfig(changes, _of_settings(desired, topic, changes)))
    wanted, there = desired.spec.partitions, len(topic.partitions)
    if wanted is not None and wanted > there:
        message = f"topic {topic.name} gets {wanted} partitions instead of {there}"
        actions.append(AddPartitions(wanted, KubeEvent("Normal", "PartitionsAdded", message)))
    elif wanted is not None and wanted < there:
        message = (
            f"the topic has {there} partitions and {wanted} are wanted: partitions cannot be taken away, their records"
            f" would go with them. Ask for {there}, or create another topic"
        )
        obstacle = status.condition(status.SYNCED, "False", "PartitionsCannotShrink", message, desired)
    reassignment, refused = _reassignment(desired, observed, topic)
    if reassignment is not None:
        actions.append(reassignment)
    return tuple(actions), obstacle or refused


def _reassignment(
    desired: Topic, observed: ObservedTopic, topic: ObservedTopicState
) -> tuple[ReassignTopic | None, Condition | None]:
    wanted = desired.spec.replicas
    domains = placement.domains_of(observed.brokers)
    if domains is None:
        return None, None
    if wanted is not None and any(len(placement.wanted_replicas(p)) != wanted for p in topic.partitions):
        short = _too_few_brokers(wanted, observed)
        if short is not None:
            return None, status.condition(status.SYNCED, "False", "TooFewBrokers", short, desired)
        targets = placement.factor_targets(topic.partitions, wanted, domains, observed.loads, observed.room)
        message = f"replicas of {len(targets)} partitions move: {wanted} are wanted of each"
        return (ReassignTopic(targets, KubeEvent("Normal", "ReplicasChanging", message)) if targets else None), None
    if not observed.may_move or not placement.are_places_known(observed.brokers):
        return None, None
    targets = placement.spread_targets(topic.partitions, domains, observed.brokers, observed.loads, observed.room)
    message = f"replicas of {len(targets)} partitions move: they were not spread over the failure domains"
    return (ReassignTopic(targets, KubeEvent("Normal", "ReplicasSpreading", message)) if targets else None), None


def _of_settings(desired: Topic, topic: ObservedTopicState, changes: settings.Changes) -> KubeEvent | None:
    words = settings.told(changes, topic.settings)
    if OWNER in changes:
        before = topic.settings.get(OWNER)
        whose = f"it was of the object with UID {before}" if before else "it was there already"
        more = f": {words}" if words else ""
        return KubeEvent("Normal", "Adopted", f"took over topic {topic.name}, {whose}{more}")
    return KubeEvent("Normal", "SettingsChanged", f"topic {topic.name}: {words}") if words else None


def _identity(desired: Topic, topic: ObservedTopicState) -> tuple[KubeEvent, ...]:
    known = desired.status.topic_id
    if known is None or known == str(topic.topic_id) or topic.settings.get(OWNER) == desired.metadata.uid:
        return ()
    message = (
        f"topic {topic.name} was deleted and created again by somebody else: its id is {topic.topic_id} and was"
        f" {known}; records and committed offsets of the old one are gone"
    )
    return (KubeEvent("Warning", "IdentityChanged", message),)


def _synced(desired: Topic, topic: ObservedTopicState) -> Condition:
    wanted = desired.spec.replicas
    short = 0 if wanted is None else sum(len(placement.present_replicas(p)) != wanted for p in topic.partitions)
    if short:
        message = f"{short} of {len(topic.partitions)} partitions do not have {wanted} replicas yet"
        return status.condition(status.SYNCED, "False", "ReplicasMoving", message, desired)
    return status.condition(status.SYNCED, "True", "Synced", "the brokers have what is wanted", desired)


def _paused(desired: Topic, actions: tuple[TopicAction, ...], obstacle: Condition | None) -> Condition:
    if obstacle is not None and not actions:
        return obstacle
    if not actions:
        return status.condition(status.SYNCED, "True", "Synced", "the brokers have what is wanted", desired)
    return status.condition(status.SYNCED, "False", "Paused", f"paused, or else: {_in_words(actions)}", desired)


def _without_note(actions: tuple[TopicAction, ...]) -> tuple[TopicAction, ...]:
    """Without those that change nothing but what the topic says of its end."""
    return tuple(a for a in actions if not (isinstance(a, AlterTopicConfig) and a.settings.keys() == {DELETION_POLICY}))


def _in_words(actions: tuple[TopicAction, ...]) -> str:
    parts = []
    for action in actions:
        if isinstance(action, AlterTopicConfig):
            parts.append("settings are changed: " + ", ".join(action.settings))
        elif isinstance(action, AddPartitions):
            parts.append(f"partitions are added, up to {action.partitions}")
        elif isinstance(action, ReassignTopic):
            parts.append(f"replicas of {len(action.targets)} partitions are moved")
    return "; ".join(parts)


# What people are told


TOLD = frozenset({"Conflict", "PartitionsCannotShrink", "TooFewBrokers", "Refused", "ClusterNotFound"})
"""Reasons of `Synced` that are worth an Event when they come up."""


def _with_transitions(desired: Topic, plan: TopicPlan) -> TopicPlan:
    """Adds Events for what was not so before: a trouble that came, a partition that lost its leader, and their end."""
    before, now = desired.status, plan.status
    told: list[KubeEvent] = []
    for kind, reasons in ((status.SYNCED, TOLD), (status.HEALTHY, frozenset({"Offline"}))):
        was, is_now = _condition(before, kind), _condition(now, kind)
        if is_now is None or (was is not None and was.reason == is_now.reason and _same_words(was, is_now)):
            continue
        if is_now.reason in reasons:
            told.append(KubeEvent("Warning", is_now.reason, is_now.message))
        elif was is not None and was.reason == "Offline" and is_now.status != "Unknown":
            told.append(KubeEvent("Normal", "Online", "every partition has a leader again"))
    if not told:
        return plan
    return ReconcilePlan(plan.status, plan.actions, (*plan.happenings, *told), plan.look_again_s)


def _same_words(was: Condition, now: Condition) -> bool:
    """A trouble is told again where its words change, but not for each partition that comes or goes."""
    return was.message == now.message or now.type == status.HEALTHY


def _condition(of: TopicStatus, kind: str) -> Condition | None:
    return next((c for c in of.conditions if c.type == kind), None)
