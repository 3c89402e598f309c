"""What a `ConsumerGroup` object comes to: its status, its one-shot reset, where the group begins, what it owns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from penstock_operator.model.common import Condition, with_conditions
from penstock_operator.model.group import ConsumerGroup, ConsumerGroupStatus, ResetStatus, TopicLag
from penstock_operator.ports.brokers import DELETION_POLICY, OWNER, RESET_ID, ObservedGroupState, ObservedOffset
from penstock_operator.ports.kube import KubeEvent
from penstock_operator.reconcile.group import reset as group_reset
from penstock_operator.reconcile.group.names import CONFLICT
from penstock_operator.reconcile.group.types import (
    Action,
    CommitOffsets,
    GroupPlan,
    GroupSettingsPatch,
    ObservedGroup,
    is_idle,
    is_there,
)
from penstock_operator.reconcile.plan import ReconcilePlan

READY, HEALTHY = "Ready", "Healthy"
ABSENT = "Absent"
SHOWN_TOPICS = 100
SHOWN_NAMES = 120
SOON_S = 0.5
TOPIC_LOOK_S = 15.0
"""When a topic is missing that offsets are to be set of."""
Truth = Literal["True", "False", "Unknown"]


def reconcile(desired: ConsumerGroup, seen: ObservedGroup, at: str) -> GroupPlan:
    """`at` is the time (RFC 3339) of conditions that change now."""
    if not seen.is_cluster_known:
        why = f"there is no Cluster {desired.spec.cluster_ref.name} in this namespace"
        return _blind(desired, "False", "ClusterNotFound", why, at)
    if seen.error is not None:
        return _blind(desired, "Unknown", "BrokersUnreachable", seen.error, at)
    shown = shown_status(desired, seen.group)
    if seen.winner is not None:
        why = f"the group {desired.group_id} belongs to the ConsumerGroup {seen.winner}, which came first: delete one"
        ready = _condition(READY, "False", CONFLICT, why, desired)
        return ReconcilePlan(_with(desired, shown, (ready, _health(desired, seen.group)), at))
    actions, happenings, reset, look_again_s = _offsets(desired, seen)
    if desired.spec.paused:
        actions = _kept_while_paused(desired, seen.group)
    else:
        actions = (*_ownership(desired, seen.group, bool(actions)), *actions)
    status = _with(desired, shown, (_readiness(desired, seen), _health(desired, seen.group)), at)
    status = msgspec.structs.replace(status, reset=reset)
    return ReconcilePlan(status, actions, happenings, look_again_s)


def _offsets(
    desired: ConsumerGroup, seen: ObservedGroup
) -> tuple[tuple[Action, ...], tuple[KubeEvent, ...], ResetStatus | None, float | None]:
    reset = desired.spec.reset
    if reset is None:
        begin = _beginning(desired, seen)
        if desired.spec.paused:
            return begin, (), None, None
        return begin, (), None, SOON_S if begin else TOPIC_LOOK_S if group_reset.missing_topics(desired, seen) else None
    told = desired.status.reset
    if group_reset.has_failed(reset, desired):
        return (), (), told, None
    if group_reset.is_done(reset, desired, seen.group):
        now = group_reset.done(desired)
        is_news = told is not None and told.id == reset.id and told.phase != "Done"
        text = f"reset {reset.id}: {now.total_changes} offsets were set to {reset.to}"
        return (), (KubeEvent("Normal", "ResetDone", text),) if is_news else (), now, None
    progress = group_reset.progress(desired, seen.group)
    if progress in ("all", "lost") or (progress == "part" and not is_idle(seen.group)):
        return _broken_off(desired, progress)
    now, offsets = group_reset.planned(desired, seen)
    is_new = told is None or (told.id, told.phase) != (now.id, now.phase)
    happenings = (_reset_told(now.phase, now.id, now.message, now.total_changes),) if is_new else ()
    actions: tuple[Action, ...] = ()
    if offsets:
        actions = (CommitOffsets(offsets, f"reset {reset.id}"), GroupSettingsPatch({RESET_ID: reset.id}))
    if group_reset.is_only_shown(reset, desired) and any(topic not in seen.partitions for topic in reset.topics):
        return actions, happenings, now, TOPIC_LOOK_S
    return actions, happenings, now, SOON_S if now.phase == "Planned" and not now.message else None


def _broken_off(
    desired: ConsumerGroup, progress: group_reset.Progress
) -> tuple[tuple[Action, ...], tuple[KubeEvent, ...], ResetStatus | None, float | None]:
    """Of a reset that is not to be committed again: noted where all of it was, given up where that cannot be told.
    While nothing may be done its plan stays as it is: it is what shows how far it came."""
    reset, told = desired.spec.reset, desired.status.reset
    assert reset is not None, "no reset is asked for"
    if group_reset.is_only_shown(reset, desired):
        return (), (), told, None
    if progress == "all":
        return (GroupSettingsPatch({RESET_ID: reset.id}),), (), told, SOON_S
    failed = group_reset.given_up(desired)
    return (), (_reset_told(failed.phase, failed.id, failed.message, failed.total_changes),), failed, None


def shown_status(desired: ConsumerGroup, group: ObservedGroupState | None) -> ConsumerGroupStatus:
    """What the brokers report, without conditions."""
    if group is None or not is_there(group):
        return ConsumerGroupStatus(group_id=desired.group_id, state=ABSENT, members=0)
    topics = _topics(group.offsets)
    ages = [topic.lag_seconds for topic in topics if topic.lag_seconds is not None]
    return ConsumerGroupStatus(
        group_id=desired.group_id,
        state=group.state,
        members=group.members,
        lag=sum(topic.lag for topic in topics),
        lag_seconds=max(ages, default=None),
        topics=topics[:SHOWN_TOPICS],
        topic_names=_names([topic.topic for topic in topics]) or None,
    )


def lag_of(offset: ObservedOffset) -> int:
    """Records that can be read and were not."""
    return max(0, offset.end - max(offset.committed, offset.start)) if offset.committed >= 0 else 0


def coarse_seconds(lag_ms: int) -> int:
    """An age as a person would say it, so that one that merely grows is not written every few seconds."""
    seconds = lag_ms // 1_000
    step = 1 if seconds < 30 else 10 if seconds < 600 else 60 if seconds < 7_200 else 600
    return seconds - seconds % step


def _topics(offsets: Sequence[ObservedOffset]) -> tuple[TopicLag, ...]:
    by_topic: dict[str, list[ObservedOffset]] = {}
    for offset in offsets:
        by_topic.setdefault(offset.topic, []).append(offset)
    return tuple(
        TopicLag(
            topic=topic,
            partitions=len(parts),
            lag=sum(map(lag_of, parts)),
            lag_seconds=max((coarse_seconds(p.lag_ms) for p in parts if p.lag_ms is not None), default=None),
        )
        for topic, parts in sorted(by_topic.items())
    )


def _names(topics: Sequence[str]) -> str:
    text = ",".join(topics)
    if len(text) <= SHOWN_NAMES:
        return text
    shown: list[str] = []
    for topic in topics:
        if len(",".join([*shown, topic])) > SHOWN_NAMES and shown:
            break
        shown.append(topic)
    return f"{','.join(shown)[:SHOWN_NAMES]} and {len(topics) - len(shown)} more"


def _beginning(desired: ConsumerGroup, seen: ObservedGroup) -> tuple[Action, ...]:
    if not group_reset.begins(desired, seen.group) or not seen.offsets or group_reset.missing_topics(desired, seen):
        return ()
    return (CommitOffsets(dict(seen.offsets), "starting offsets"),)


def _ownership(desired: ConsumerGroup, group: ObservedGroupState | None, is_made_now: bool) -> tuple[Action, ...]:
    """The group says whose it is where that object's end is to be its own: an operator that was away then finds out."""
    settings = group.settings if group is not None else {}
    if desired.spec.deletion_policy == "Delete":
        wanted = {OWNER: desired.metadata.uid, DELETION_POLICY: "Delete"}
        if (is_there(group) or is_made_now) and any(settings.get(key) != value for key, value in wanted.items()):
            return (GroupSettingsPatch(wanted),)
    elif settings.get(OWNER) and settings.get(DELETION_POLICY) == "Delete":
        # Another's, too: this object is the group's now, and keeps it.
        return (GroupSettingsPatch({OWNER: None, DELETION_POLICY: None}),)
    return ()


def _kept_while_paused(desired: ConsumerGroup, group: ObservedGroupState | None) -> tuple[Action, ...]:
    """The one note that a paused object does change: its group must not go with it, whoever sees that it went."""
    settings = group.settings if group is not None else {}
    if settings.get(OWNER) == desired.metadata.uid and settings.get(DELETION_POLICY) == "Delete":
        return (GroupSettingsPatch({OWNER: None, DELETION_POLICY: None}),)
    return ()


def _readiness(desired: ConsumerGroup, seen: ObservedGroup) -> Condition:
    missing = group_reset.missing_topics(desired, seen)
    if missing:
        why = f"starting offsets are set as soon as there is a topic {', '.join(missing[:5])}"
        return _condition(READY, "True", "Known" if is_there(seen.group) else ABSENT, why, desired)
    if is_there(seen.group):
        return _condition(READY, "True", "Known", "the brokers know the group", desired)
    return _condition(READY, "True", ABSENT, "the brokers do not know the group; the object stays", desired)


def _health(desired: ConsumerGroup, group: ObservedGroupState | None) -> Condition:
    if group is None or not is_there(group):
        return _condition(HEALTHY, "Unknown", ABSENT, "there is no such group now", desired)
    unknown = sum(offset.end < 0 for offset in group.offsets)
    if unknown:
        why = f"{unknown} partitions do not tell where they end, such as those without a leader: their lag is not known"
        return _condition(HEALTHY, "Unknown", "LagUnknown", why, desired)
    if group.members:
        return _condition(HEALTHY, "True", "Consuming", "the group has members", desired)
    if any(map(lag_of, group.offsets)):
        return _condition(HEALTHY, "False", "NotConsuming", "there are records to read, and nobody reads", desired)
    return _condition(HEALTHY, "True", "CaughtUp", "all is read", desired)


def _blind(desired: ConsumerGroup, truth: Truth, reason: str, why: str, at: str) -> GroupPlan:
    """The numbers stay as they were seen last; the condition says that they are old. Why is said once: the words of
    one failure after another differ, and are no news."""
    known = next((c for c in desired.status.conditions if c.type == READY), None)
    if known is not None and (known.status, known.reason) == (truth, reason) and _what(known.message) == _what(why):
        why = known.message
    conditions = (
        _condition(READY, truth, reason, why, desired),
        _condition(HEALTHY, "Unknown", reason, "the group cannot be seen", desired),
    )
    return ReconcilePlan(_with(desired, desired.status, conditions, at))


def _what(message: str) -> str:
    """What was wanted of the brokers when it failed."""
    return message.partition(":")[0]


def _with(
    desired: ConsumerGroup, shown: ConsumerGroupStatus, conditions: tuple[Condition, ...], at: str
) -> ConsumerGroupStatus:
    return msgspec.structs.replace(
        shown,
        observed_generation=desired.metadata.generation,
        conditions=with_conditions(desired.status.conditions, conditions, at),
        reset=desired.status.reset,
    )


def _condition(kind: str, truth: Truth, reason: str, message: str, desired: ConsumerGroup) -> Condition:
    return Condition(
        type=kind,
        status=truth,
        reason=reason,
        message=message[:1_024],
        observed_generation=desired.metadata.generation,
    )


def _reset_told(phase: str, reset_id: str, message: str, changes: int) -> KubeEvent:
    if phase == "Planned":
        text = f"reset {reset_id}: {changes} offsets are to be set. {message}"
        return KubeEvent("Normal", "ResetPlanned", text.strip())
    return KubeEvent("Warning", f"Reset{phase}", f"reset {reset_id}: {message}")
