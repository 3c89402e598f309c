"""The status of a `Topic`: figures from the brokers, and conditions. Used by `reconcile.topic`."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock_operator.model.common import Condition
from penstock_operator.model.topic import Topic, TopicStatus
from penstock_operator.ports.brokers import BrokersError, ObservedPartition, ObservedTopicState
from penstock_operator.reconcile.topic.placement import present_replicas

READY, SYNCED, HEALTHY, PROGRESSING = "Ready", "Synced", "Healthy", "Progressing"
Truth = Literal["True", "False", "Unknown"]
MAX_MESSAGE_CHARS = 1024


def counted(topic: ObservedTopicState) -> TopicStatus:
    """Return the status of an existing topic, without conditions."""
    partitions = topic.partitions
    offline = sum(p.leader < 0 for p in partitions)
    in_sync = sum(p.leader >= 0 and is_in_sync(p) for p in partitions)
    return TopicStatus(
        topic_name=topic.name,
        topic_id=str(topic.topic_id),
        partitions=len(partitions),
        replicas=min((len(present_replicas(p)) for p in partitions), default=0),
        in_sync=in_sync,
        under_replicated=len(partitions) - in_sync,
        offline=offline,
        moving=sum(bool(p.adding or p.removing) for p in partitions),
    )


def is_in_sync(partition: ObservedPartition) -> bool:
    """Whether all replicas are in sync, except those that are being added."""
    return set(present_replicas(partition)) <= set(partition.isr)


def condition(kind: str, status: Truth, reason: str, message: str, desired: Topic) -> Condition:
    """Return a condition; truncates the message."""
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message[:MAX_MESSAGE_CHARS],
        observed_generation=desired.metadata.generation,
    )


def with_all(
    numbers: TopicStatus, desired: Topic, synced: Condition, healthy: Condition, progressing: Condition
) -> TopicStatus:
    """Return `numbers` with all conditions. Ready: synced, and all partitions have a leader.

    A topic whose partitions are being decreased serves clients as before, and groups may take days: it is ready.
    """
    is_decreasing = numbers.decrease is not None and synced.reason == numbers.decrease.phase
    if synced.status != "True" and not is_decreasing:
        ready = condition(READY, synced.status, synced.reason, synced.message, desired)
    elif numbers.offline:
        ready = condition(READY, "False", healthy.reason, healthy.message, desired)
    elif is_decreasing:
        ready = condition(READY, "True", synced.reason, synced.message, desired)
    else:
        ready = condition(READY, "True", "Ready", "the topic matches the spec", desired)
    return msgspec.structs.replace(
        numbers,
        observed_generation=desired.metadata.generation,
        conditions=(ready, synced, healthy, progressing),
    )


def health(numbers: TopicStatus, desired: Topic) -> Condition:
    """Return condition Healthy."""
    if numbers.offline:
        message = f"{numbers.offline} of {numbers.partitions} partitions have no leader"
        return condition(HEALTHY, "False", "Offline", message, desired)
    if numbers.under_replicated:
        message = f"{numbers.under_replicated} of {numbers.partitions} partitions lack in-sync replicas"
        return condition(HEALTHY, "False", "UnderReplicated", message, desired)
    return condition(HEALTHY, "True", "InSync", "all replicas are in sync", desired)


def progress(numbers: TopicStatus, desired: Topic) -> Condition:
    """Return condition Progressing."""
    if numbers.moving:
        message = f"replicas of {numbers.moving} of {numbers.partitions} partitions are moving"
        return condition(PROGRESSING, "True", "Moving", message, desired)
    return condition(PROGRESSING, "False", "Still", "no operation is in progress", desired)


def absent(desired: Topic, reason: str, message: str, truth: Truth = "False", is_coming: bool = False) -> TopicStatus:
    """Return the status of a topic that does not exist. Keeps its last known id."""
    return with_all(
        TopicStatus(
            topic_name=desired.topic_name,
            topic_id=desired.status.topic_id,
            kept_settings=desired.status.kept_settings,
        ),
        desired,
        condition(SYNCED, truth, reason, message, desired),
        condition(HEALTHY, "Unknown", reason, message, desired),
        condition(PROGRESSING, "True" if is_coming else truth, reason, message, desired),
    )


def unknown(desired: Topic, reason: str, message: str) -> TopicStatus:
    """Return the status of a topic whose brokers cannot be queried: last known figures, conditions Unknown."""
    kinds = [condition(kind, "Unknown", reason, message, desired) for kind in (SYNCED, HEALTHY, PROGRESSING)]
    return with_all(desired.status, desired, *kinds)


def refusal(desired: Topic, error: BrokersError) -> Condition:
    """Return condition Synced after a failed action."""
    if error.is_passing:
        message = f"the brokers cannot apply the change yet, retrying: {error}"
        return condition(SYNCED, "False", "Retrying", message, desired)
    return condition(SYNCED, "False", "Refused", f"the brokers rejected the change: {error}", desired)


def reason_of(status: TopicStatus, kind: str) -> str | None:
    """Return the reason of a condition, or None."""
    return next((c.reason for c in status.conditions if c.type == kind), None)
