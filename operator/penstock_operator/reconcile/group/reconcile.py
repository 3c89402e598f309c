"""Plans a `ConsumerGroup`: status, reset, replay, starting offsets, ownership. Pure. Called by `groups.controller`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from penstock_operator.model.common import Condition, with_conditions
from penstock_operator.model.group import ConsumerGroup, ConsumerGroupStatus, GroupDeadLetters, ResetStatus, TopicLag
from penstock_operator.ports.brokers import (
    DELETION_POLICY,
    HIBERNATED,
    OWNER,
    RESET_ID,
    ObservedDeadLetters,
    ObservedGroupState,
    ObservedOffset,
)
from penstock_operator.ports.kube import KubeEvent
from penstock_operator.reconcile.group import reset as group_reset
from penstock_operator.reconcile.group import settings as group_settings
from penstock_operator.reconcile.group.names import CONFLICT
from penstock_operator.reconcile.group.replay import plan_replay
from penstock_operator.reconcile.group.types import (
    Action,
    CommitOffsets,
    GroupPlan,
    GroupSettingsPatch,
    ObservedGroup,
    group_exists,
    is_idle,
    is_share_group,
)
from penstock_operator.reconcile.plan import ReconcilePlan

READY, HEALTHY = "Ready", "Healthy"
ABSENT = "Absent"
SHOWN_TOPICS = 100
SHOWN_NAMES = 120
SOON_S = 0.5
TOPIC_RETRY_S = 15.0
"""Requeue interval while a topic of a reset or of starting offsets does not exist."""
Truth = Literal["True", "False", "Unknown"]


def reconcile(desired: ConsumerGroup, observed: ObservedGroup, at: str) -> GroupPlan:
    """Plan a group. `at`: transition time (RFC 3339) of conditions that change."""
    if not observed.is_cluster_known:
        why = f'Cluster "{desired.spec.cluster_ref.name}" does not exist in this namespace'
        return _unobserved(desired, "False", "ClusterNotFound", why, at)
    if observed.error is not None:
        reason = HIBERNATED if observed.is_hibernated else "BrokersUnreachable"
        return _unobserved(desired, "Unknown", reason, observed.error, at)
    shown = shown_status(desired, observed.group)
    if observed.winner is not None:
        why = f"group {desired.group_id} belongs to ConsumerGroup {observed.winner}, which is older: delete one of them"
        ready = _condition(READY, "False", CONFLICT, why, desired)
        return ReconcilePlan(_with(desired, shown, (ready, _health(desired, observed.group)), at))
    actions, events, reset, requeue_after_s = _offsets(desired, observed)
    replay = plan_replay(desired, observed)
    if desired.spec.paused:
        actions = _kept_while_paused(desired, observed.group)
    else:
        patch = group_settings.changes(desired, observed.group)
        configuring = (GroupSettingsPatch(patch),) if patch else ()
        actions = (*_ownership(desired, observed.group, bool(actions)), *configuring, *actions, *replay.actions)
    status = _with(desired, shown, (_readiness(desired, observed), _health(desired, observed.group)), at)
    status = msgspec.structs.replace(status, reset=reset, replay=replay.status)
    times_s = [time_s for time_s in (requeue_after_s, replay.requeue_after_s) if time_s is not None]
    return ReconcilePlan(status, actions, (*events, *replay.events), min(times_s, default=None))


def _offsets(
    desired: ConsumerGroup, observed: ObservedGroup
) -> tuple[tuple[Action, ...], tuple[KubeEvent, ...], ResetStatus | None, float | None]:
    reset = desired.spec.reset
    if reset is None:
        begin = _starting_offsets(desired, observed)
        if desired.spec.paused:
            return begin, (), None, None
        return (
            begin,
            (),
            None,
            SOON_S if begin else TOPIC_RETRY_S if group_reset.missing_topics(desired, observed) else None,
        )
    previous = desired.status.reset
    if group_reset.has_failed(reset, desired):
        return (), (), previous, None
    if group_reset.is_done(reset, desired, observed.group):
        now = group_reset.completed_status(desired)
        is_newly_done = previous is not None and previous.id == reset.id and previous.phase != "Done"
        text = f"reset {reset.id}: set {now.total_changes} offsets to {reset.to}"
        return (), (KubeEvent("Normal", "ResetDone", text),) if is_newly_done else (), now, None
    progress = group_reset.progress(desired, observed.group)
    if progress in ("all", "lost") or (progress == "part" and not is_idle(observed.group)):
        return _resume_interrupted(desired, progress)
    now, offsets = group_reset.plan_reset(desired, observed)
    is_new = previous is None or (previous.id, previous.phase) != (now.id, now.phase)
    events = (_reset_event(now.phase, now.id, now.message, now.total_changes),) if is_new else ()
    actions: tuple[Action, ...] = ()
    if offsets:
        committed = CommitOffsets(offsets, is_share_group(desired, observed.group))
        actions = (committed, GroupSettingsPatch({RESET_ID: reset.id}))
    if group_reset.is_dry_run(reset, desired) and any(topic not in observed.partitions for topic in reset.topics):
        return actions, events, now, TOPIC_RETRY_S
    return actions, events, now, SOON_S if now.phase == "Planned" and not now.message else None


def _resume_interrupted(
    desired: ConsumerGroup, progress: group_reset.Progress
) -> tuple[tuple[Action, ...], tuple[KubeEvent, ...], ResetStatus | None, float | None]:
    """Handle an interrupted reset that must not be committed again: record it as done if all offsets were committed,
    fail it if that is unknown. While the object is paused or in dry run, keep its plan, which shows its progress."""
    reset, previous = desired.spec.reset, desired.status.reset
    assert reset is not None, "the spec has no reset"
    if group_reset.is_dry_run(reset, desired):
        return (), (), previous, None
    if progress == "all":
        return (GroupSettingsPatch({RESET_ID: reset.id}),), (), previous, SOON_S
    failed = group_reset.failed_status(desired)
    return (), (_reset_event(failed.phase, failed.id, failed.message, failed.total_changes),), failed, None


def shown_status(desired: ConsumerGroup, group: ObservedGroupState | None) -> ConsumerGroupStatus:
    """Return the status that the brokers report, without conditions."""
    if group is None or not group_exists(group):
        return ConsumerGroupStatus(group_id=desired.group_id, state=ABSENT, members=0)
    topics = _topics(group.offsets)
    ages = [topic.lag_seconds for topic in topics if topic.lag_seconds is not None]
    return ConsumerGroupStatus(
        group_id=desired.group_id,
        type=group.group_type,
        state=group.state,
        members=group.members,
        lag=sum(topic.lag for topic in topics),
        lag_seconds=max(ages, default=None),
        topics=topics[:SHOWN_TOPICS],
        topic_names=_names([topic.topic for topic in topics]) or None,
        dead_letters=_dead_letters(group.dead_letters),
    )


def _dead_letters(found: ObservedDeadLetters | None) -> GroupDeadLetters | None:
    if found is None:
        return None
    oldest = None if found.oldest_ms is None else utc_time(found.oldest_ms)
    return GroupDeadLetters(topic=found.topic, depth=found.depth, oldest=oldest)


def utc_time(time_ms: int) -> str:
    """Return a time in ms since 1970 in RFC 3339."""
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def coarse_seconds(lag_ms: int) -> int:
    """Return an age in s, rounded down with growing steps, so that a growing age does not cause constant status
    writes."""
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
            lag=sum(part.lag or 0 for part in parts),
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


def _starting_offsets(desired: ConsumerGroup, observed: ObservedGroup) -> tuple[Action, ...]:
    if (
        not group_reset.needs_starting_offsets(desired, observed.group)
        or not observed.offsets
        or group_reset.missing_topics(desired, observed)
    ):
        return ()
    return (CommitOffsets(dict(observed.offsets), is_share_group(desired, observed.group)),)


def _ownership(desired: ConsumerGroup, group: ObservedGroupState | None, is_made_now: bool) -> tuple[Action, ...]:
    """Return the change of the stored ownership: with policy Delete, the group stores owner and policy, so that an
    operator that was not running when the object was deleted can find out."""
    settings = group.settings if group is not None else {}
    if desired.spec.deletion_policy == "Delete":
        wanted = {OWNER: desired.metadata.uid, DELETION_POLICY: "Delete"}
        if (group_exists(group) or is_made_now) and any(settings.get(key) != value for key, value in wanted.items()):
            return (GroupSettingsPatch(wanted),)
    elif settings.get(OWNER) and settings.get(DELETION_POLICY) == "Delete":
        # Also if another object stored it: this object owns the group now and retains it.
        return (GroupSettingsPatch({OWNER: None, DELETION_POLICY: None}),)
    return ()


def _kept_while_paused(desired: ConsumerGroup, group: ObservedGroupState | None) -> tuple[Action, ...]:
    """Return the only change of a paused object: it removes its stored policy Delete, so that deleting the paused
    object does not delete its group."""
    settings = group.settings if group is not None else {}
    if settings.get(OWNER) == desired.metadata.uid and settings.get(DELETION_POLICY) == "Delete":
        return (GroupSettingsPatch({OWNER: None, DELETION_POLICY: None}),)
    return ()


def _readiness(desired: ConsumerGroup, observed: ObservedGroup) -> Condition:
    missing = group_reset.missing_topics(desired, observed)
    if missing:
        why = f"waiting for topics to set starting offsets: {', '.join(missing[:5])}"
        return _condition(READY, "True", "Known" if group_exists(observed.group) else ABSENT, why, desired)
    group = observed.group
    if group is not None and group_exists(group):
        if desired.spec.type not in (None, group.group_type):
            why = (
                f"the group is a {group.group_type} group, spec.type is {desired.spec.type}: correct spec.type, or"
                " delete the group"
            )
            return _condition(READY, "False", "TypeMismatch", why, desired)
        return _condition(READY, "True", "Known", "the group exists", desired)
    return _condition(READY, "True", ABSENT, "the group does not exist; the object is kept", desired)


def _health(desired: ConsumerGroup, group: ObservedGroupState | None) -> Condition:
    if group is None or not group_exists(group):
        return _condition(HEALTHY, "Unknown", ABSENT, "the group does not exist", desired)
    unknown = sum(offset.lag is None for offset in group.offsets)
    if unknown:
        why = (
            f"the lag of {unknown} partitions is unknown: their end offset cannot be read, for example without a leader"
        )
        return _condition(HEALTHY, "Unknown", "LagUnknown", why, desired)
    if group.members:
        return _condition(HEALTHY, "True", "Consuming", "the group has members", desired)
    if any(offset.lag for offset in group.offsets):
        return _condition(HEALTHY, "False", "NotConsuming", "the group has lag and no members", desired)
    return _condition(HEALTHY, "True", "CaughtUp", "the group has no lag", desired)


def rejected(desired: ConsumerGroup, status: ConsumerGroupStatus, why: str, at: str) -> ConsumerGroupStatus:
    """Return a status after the brokers have rejected a change, for example an invalid setting."""
    ready = _condition(READY, "False", "Rejected", why, desired)
    others = tuple(condition for condition in status.conditions if condition.type != READY)
    return msgspec.structs.replace(
        status,
        conditions=with_conditions(desired.status.conditions, (ready, *others), at),
        configured=desired.status.configured,
    )


def _unobserved(desired: ConsumerGroup, truth: Truth, reason: str, why: str, at: str) -> GroupPlan:
    """Return a plan that keeps the last known figures. The message of the first failure is kept while the same call
    fails, so that changing error texts do not cause status writes."""
    known = next((c for c in desired.status.conditions if c.type == READY), None)
    if (
        known is not None
        and (known.status, known.reason) == (truth, reason)
        and _failed_call(known.message) == _failed_call(why)
    ):
        why = known.message
    conditions = (
        _condition(READY, truth, reason, why, desired),
        _condition(HEALTHY, "Unknown", reason, "the state of the group is unknown", desired),
    )
    return ReconcilePlan(_with(desired, desired.status, conditions, at))


def _failed_call(message: str) -> str:
    """Return the name of the failed call in an error message."""
    return message.partition(":")[0]


def _with(
    desired: ConsumerGroup, shown: ConsumerGroupStatus, conditions: tuple[Condition, ...], at: str
) -> ConsumerGroupStatus:
    return msgspec.structs.replace(
        shown,
        observed_generation=desired.metadata.generation,
        conditions=with_conditions(desired.status.conditions, conditions, at),
        reset=desired.status.reset,
        replay=desired.status.replay,
        configured=group_settings.configured(desired),
    )


def _condition(kind: str, truth: Truth, reason: str, message: str, desired: ConsumerGroup) -> Condition:
    return Condition(
        type=kind,
        status=truth,
        reason=reason,
        message=message[:1_024],
        observed_generation=desired.metadata.generation,
    )


def _reset_event(phase: str, reset_id: str, message: str, changes: int) -> KubeEvent:
    if phase == "Planned":
        text = f"reset {reset_id}: planned {changes} offset changes. {message}"
        return KubeEvent("Normal", "ResetPlanned", text.strip())
    return KubeEvent("Warning", f"Reset{phase}", f"reset {reset_id}: {message}")
