"""Plans one topic from its object and the brokers' report. Pure. Called by `topics`.

Level-triggered: the plan depends only on these inputs. A topic that matches its spec yields no action and an unchanged
status.
"""

from __future__ import annotations

import msgspec

from penstock_operator.model.common import Condition
from penstock_operator.model.topic import Topic, TopicStatus
from penstock_operator.ports.brokers import DELETION_POLICY, HIBERNATED, OWNER, ObservedTopicState, TopicCreation
from penstock_operator.ports.kube import KubeEvent
from penstock_operator.reconcile.plan import ReconcilePlan
from penstock_operator.reconcile.topic import decrease as decrease
from penstock_operator.reconcile.topic import deletion as deletion
from penstock_operator.reconcile.topic import placement as placement
from penstock_operator.reconcile.topic import settings as settings
from penstock_operator.reconcile.topic import status as status
from penstock_operator.reconcile.topic.types import (
    AddPartitions,
    AlterTopicConfig,
    CreateTopic,
    DecreasePartitions,
    ObservedTopic,
    ReassignTopic,
    TopicAction,
)

TopicPlan = ReconcilePlan[TopicAction, TopicStatus]

NO_CLUSTER_RETRY_S = 15.0
SHORT_RETRY_S = 15.0
"""Requeue interval while a topic waits for more brokers."""
MOVING_INTERVAL_S = 3.0
SOON_S = 0.5


def reconcile(desired: Topic | None, observed: ObservedTopic) -> TopicPlan:
    """Plan a topic. `desired` None: the topic has no object, and the plan's status is unused."""
    if desired is None:
        return deletion.plan(observed) if observed.failure is None else ReconcilePlan(TopicStatus())
    return _with_events(desired, _planned(desired, observed))


def _planned(desired: Topic, observed: ObservedTopic) -> TopicPlan:
    if not observed.has_cluster:
        name = desired.spec.cluster_ref.name
        message = f'Cluster "{name}" does not exist in this namespace: create it, or set another clusterRef'
        return ReconcilePlan(status.unknown(desired, "ClusterNotFound", message), requeue_after_s=NO_CLUSTER_RETRY_S)
    winner = winner_of(desired, observed.rivals)
    if winner is not None:
        return _conflict(desired, winner, observed)
    if observed.unreachable is not None:
        reason = HIBERNATED if observed.is_hibernated else "Unreachable"
        return ReconcilePlan(status.unknown(desired, reason, observed.unreachable))
    if observed.topic is None:
        return _create_missing(desired, observed)
    if _must_delete_first(observed):
        return _delete_first(desired, observed)
    return _reconcile_existing(desired, observed, observed.topic)


def winner_of(desired: Topic, rivals: tuple[Topic, ...]) -> Topic | None:
    """Return the object that owns the topic, or None if it is `desired`."""
    first = min((desired, *rivals), key=claim)
    return None if first.metadata.uid == desired.metadata.uid else first


def claim(topic: Topic) -> tuple[str, bool, str]:
    """Return the sort key that decides which object owns a topic; the smallest wins: the oldest object, then, as
    creation times have a resolution of one second, the one that has owned the topic, then the smaller UID."""
    return topic.metadata.creation_timestamp, topic.status.topic_id is None, topic.metadata.uid


def _conflict(desired: Topic, winner: Topic, observed: ObservedTopic) -> TopicPlan:
    message = (
        f"topic {desired.topic_name} belongs to Topic {winner.metadata.name}, which is older: delete one of the two,"
        " or set another topicName"
    )
    numbers = TopicStatus(topic_name=desired.topic_name)
    conditions = [
        status.condition(status.SYNCED, "False", "Conflict", message, desired),
        status.condition(status.HEALTHY, "Unknown", "Conflict", message, desired),
        status.condition(status.PROGRESSING, "False", "Conflict", message, desired),
    ]
    return ReconcilePlan(status.with_all(numbers, desired, *conditions))


# Topics that do not exist


def _create_missing(desired: Topic, observed: ObservedTopic) -> TopicPlan:
    spec = desired.spec
    if spec.paused or desired.metadata.deletion_timestamp is not None:
        why = "paused" if spec.paused else "being deleted"
        message = f"topic {desired.topic_name} does not exist, and this object is {why}"
        return ReconcilePlan(status.absent(desired, "Paused" if spec.paused else "Deleting", message))
    if observed.failure is not None:
        # Only after a failed attempt, because brokers also place replicas on brokers that are restarting.
        short = _too_few_brokers(spec.replicas, observed)
        if short is not None and not observed.failure.is_passing:
            return ReconcilePlan(status.absent(desired, "TooFewBrokers", short), requeue_after_s=SHORT_RETRY_S)
        refused = status.refusal(desired, observed.failure)
        return ReconcilePlan(status.absent(desired, refused.reason, refused.message))
    new = TopicCreation(
        desired.topic_name, spec.partitions, spec.replicas, {**spec.config, **settings.ownership(desired)}
    )
    event = KubeEvent("Normal", "Created", f"created topic {desired.topic_name}")
    if desired.status.topic_id is not None:
        event = KubeEvent(
            "Warning",
            "Recreated",
            f"topic {desired.topic_name} was deleted by another client: created it again, empty and with a new id",
        )
    message = f"creating topic {desired.topic_name}"
    return ReconcilePlan(
        status.absent(desired, "Creating", message, is_coming=True), (CreateTopic(new, event),), requeue_after_s=SOON_S
    )


def _too_few_brokers(replicas: int | None, observed: ObservedTopic) -> str | None:
    there = placement.usable(observed.brokers)
    if replicas is None or replicas <= there:
        return None
    return (
        f"{replicas} replicas need as many brokers, and {there} can hold replicas: add brokers to the Cluster, or set"
        f" replicas to at most {there}"
    )


# Topics of a deleted object of the same name with deletionPolicy Delete


def _must_delete_first(observed: ObservedTopic) -> bool:
    absence = observed.absence
    if absence is None or not (absence.same_name and absence.was_deleted):
        return False
    return deletion.decide_deletion(observed) in ("check", "delete")


def _delete_first(desired: Topic, observed: ObservedTopic) -> TopicPlan:
    message = (
        f"topic {desired.topic_name} belongs to a deleted object of this name with deletionPolicy Delete: the operator"
        " deletes it first, then creates a new one"
    )
    waiting = status.absent(desired, "Replacing", message, is_coming=True)
    if desired.spec.paused:
        return ReconcilePlan(status.absent(desired, "Paused", f"{message}, once this object is no longer paused"))
    if deletion.decide_deletion(observed) == "check":
        return ReconcilePlan(waiting, requeue_after_s=SOON_S)
    if observed.failure is not None:
        refused = status.refusal(desired, observed.failure)
        return ReconcilePlan(status.absent(desired, refused.reason, refused.message))
    return ReconcilePlan(waiting, (deletion.deletion(observed),), requeue_after_s=SOON_S)


# Topics that exist


def _reconcile_existing(desired: Topic, observed: ObservedTopic, topic: ObservedTopicState) -> TopicPlan:
    kept = settings.kept_settings(desired, topic.settings)
    progress_of_decrease = decrease.reported(topic.shrink, observed.readers, desired.status)
    numbers = msgspec.structs.replace(status.counted(topic), kept_settings=kept, decrease=progress_of_decrease)
    actions, obstacle = _actions(desired, observed, topic, kept)
    events = _identity_events(desired, topic)
    progressing = _progressing(desired, numbers)
    if desired.spec.paused:
        note = settings.kept_while_paused(desired, topic.settings)
        unfinished = obstacle or decrease.condition(status.SYNCED, numbers, desired)
        synced = _paused(desired, _without_policy_note(actions), unfinished)
        actions = (AlterTopicConfig(note, None),) if note and observed.failure is None else ()
    elif observed.failure is not None:
        synced = status.refusal(desired, observed.failure)
        actions = ()
    elif actions:
        synced = status.condition(status.SYNCED, "False", "Applying", _describe(actions), desired)
        progressing = status.condition(status.PROGRESSING, "True", "Applying", synced.message, desired)
    else:
        synced = obstacle or _synced(desired, topic, numbers)
    made = status.with_all(numbers, desired, synced, status.health(numbers, desired), progressing)
    if actions and kept and not set(kept) <= set(desired.status.kept_settings):
        # The kept settings of an adopted topic are stored in the status before the topic is adopted: otherwise, after a
        # crash in between, they would look like this object's own settings and be reset.
        return ReconcilePlan(made, (), events, requeue_after_s=SOON_S)
    look_s = SOON_S if actions else MOVING_INTERVAL_S if numbers.moving else decrease.interval_s(numbers)
    if obstacle is not None and obstacle.reason == "TooFewBrokers":
        look_s = look_s or SHORT_RETRY_S
    return ReconcilePlan(made, actions, events, requeue_after_s=look_s)


def _actions(
    desired: Topic, observed: ObservedTopic, topic: ObservedTopicState, kept: tuple[str, ...]
) -> tuple[tuple[TopicAction, ...], Condition | None]:
    """Return the actions, and the Synced condition for a change that is impossible."""
    actions: list[TopicAction] = []
    changes = settings.changes(desired, topic.settings, kept)
    if changes:
        actions.append(AlterTopicConfig(changes, _settings_event(desired, topic, changes)))
    counted, obstacle = decrease.plan_count(desired, topic)
    if counted is not None:
        actions.append(counted)
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
    if wanted is not None and any(len(placement.replicas_after_move(p)) != wanted for p in topic.partitions):
        short = _too_few_brokers(wanted, observed)
        if short is not None:
            return None, status.condition(status.SYNCED, "False", "TooFewBrokers", short, desired)
        targets = placement.factor_targets(topic.partitions, wanted, domains, observed.loads, observed.room)
        message = f"changing the replicas of {len(targets)} partitions to a replication factor of {wanted}"
        return (ReassignTopic(targets, KubeEvent("Normal", "ReplicasChanging", message)) if targets else None), None
    if not observed.may_move or not placement.are_places_known(observed.brokers):
        return None, None
    targets = placement.spread_targets(topic.partitions, domains, observed.brokers, observed.loads, observed.room)
    message = f"moving replicas of {len(targets)} partitions to spread them over the failure domains"
    return (ReassignTopic(targets, KubeEvent("Normal", "ReplicasSpreading", message)) if targets else None), None


def _settings_event(desired: Topic, topic: ObservedTopicState, changes: settings.Changes) -> KubeEvent | None:
    description = settings.describe_changes(changes, topic.settings)
    if OWNER in changes:
        before = topic.settings.get(OWNER)
        whose = f"previously owned by the object with UID {before}" if before else "which existed already"
        more = f": {description}" if description else ""
        return KubeEvent("Normal", "Adopted", f"adopted topic {topic.name}, {whose}{more}")
    return KubeEvent("Normal", "SettingsChanged", f"topic {topic.name}: {description}") if description else None


def _identity_events(desired: Topic, topic: ObservedTopicState) -> tuple[KubeEvent, ...]:
    known = desired.status.topic_id
    if known is None or known == str(topic.topic_id) or topic.settings.get(OWNER) == desired.metadata.uid:
        return ()
    message = (
        f"topic {topic.name} was deleted and recreated by another client: its id changed from {known} to"
        f" {topic.topic_id}; its previous records and committed offsets are lost"
    )
    return (KubeEvent("Warning", "IdentityChanged", message),)


def _progressing(desired: Topic, numbers: TopicStatus) -> Condition:
    moving = status.progress(numbers, desired)
    return moving if numbers.moving else decrease.condition(status.PROGRESSING, numbers, desired) or moving


def _synced(desired: Topic, topic: ObservedTopicState, numbers: TopicStatus) -> Condition:
    wanted = desired.spec.replicas
    short = 0 if wanted is None else sum(len(placement.present_replicas(p)) != wanted for p in topic.partitions)
    if short:
        message = f"{short} of {len(topic.partitions)} partitions do not have {wanted} replicas yet"
        return status.condition(status.SYNCED, "False", "ReplicasMoving", message, desired)
    if (unfinished := decrease.condition(status.SYNCED, numbers, desired)) is not None:
        return unfinished
    return status.condition(status.SYNCED, "True", "Synced", "the topic matches the spec", desired)


def _paused(desired: Topic, actions: tuple[TopicAction, ...], obstacle: Condition | None) -> Condition:
    if obstacle is not None and not actions:
        return obstacle
    if not actions:
        return status.condition(status.SYNCED, "True", "Synced", "the topic matches the spec", desired)
    return status.condition(status.SYNCED, "False", "Paused", f"paused; pending: {_describe(actions)}", desired)


def _without_policy_note(actions: tuple[TopicAction, ...]) -> tuple[TopicAction, ...]:
    """Return the actions without changes of the stored deletion policy alone."""
    return tuple(a for a in actions if not (isinstance(a, AlterTopicConfig) and a.settings.keys() == {DELETION_POLICY}))


def _describe(actions: tuple[TopicAction, ...]) -> str:
    parts = []
    for action in actions:
        if isinstance(action, AlterTopicConfig):
            parts.append("change settings: " + ", ".join(action.settings))
        elif isinstance(action, AddPartitions):
            parts.append(f"add partitions, up to {action.partitions}")
        elif isinstance(action, DecreasePartitions):
            parts.append(f"decrease partitions to {action.partitions}")
        elif isinstance(action, ReassignTopic):
            parts.append(f"move replicas of {len(action.targets)} partitions")
    return "; ".join(parts)


# Events


EVENT_REASONS = frozenset({"Conflict", "DecreaseNotConfirmed", "TooFewBrokers", "Refused", "ClusterNotFound"})
"""Reasons of condition Synced that cause a Warning Event."""


def _with_events(desired: Topic, plan: TopicPlan) -> TopicPlan:
    """Add Events for changed conditions: new problems, offline partitions, partitions that are online again, and the
    phases of a decrease."""
    before, now = desired.status, plan.status
    events = list(decrease.events(before, now))
    for kind, reasons in ((status.SYNCED, EVENT_REASONS), (status.HEALTHY, frozenset({"Offline"}))):
        was, is_now = _condition(before, kind), _condition(now, kind)
        if is_now is None or (was is not None and was.reason == is_now.reason and _is_same_message(was, is_now)):
            continue
        if is_now.reason == "Offline" and was is not None and was.reason == HIBERNATED:
            continue  # brokers that wake answer before they lead
        if is_now.reason in reasons:
            events.append(KubeEvent("Warning", is_now.reason, is_now.message))
        elif was is not None and was.reason == "Offline" and is_now.status != "Unknown":
            events.append(KubeEvent("Normal", "Online", "every partition has a leader again"))
    if not events:
        return plan
    return ReconcilePlan(plan.status, plan.actions, (*plan.events, *events), plan.requeue_after_s)


def _is_same_message(was: Condition, now: Condition) -> bool:
    """Whether a condition needs no new Event: its message is unchanged, or only the number of partitions changed."""
    return was.message == now.message or now.type == status.HEALTHY


def _condition(of: TopicStatus, kind: str) -> Condition | None:
    return next((c for c in of.conditions if c.type == kind), None)
