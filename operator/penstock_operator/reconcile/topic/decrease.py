"""Plans the number of partitions of a topic, and reports how far a decrease has come. Used by `reconcile.topic`.

The brokers seal surplus partitions and hide them once they are read. The operator only requests it, and only if the
spec confirms the number: a typo in `partitions` must not seal any.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock_operator.model.common import Condition
from penstock_operator.model.topic import (
    DecreasePhase,
    DrainingReader,
    PartitionDecrease,
    Topic,
    TopicSeal,
    TopicStatus,
)
from penstock_operator.ports.brokers import ObservedReader, ObservedShrink, ObservedTopicState, ShrinkState
from penstock_operator.ports.kube import KubeEvent
from penstock_operator.reconcile.topic import status as status
from penstock_operator.reconcile.topic.types import AddPartitions, DecreasePartitions

MAX_SEALS = 50
MAX_READERS = 10
MAX_NAMED_READERS = 3
"""Groups in messages."""
SEALING_INTERVAL_S = 3.0
DRAINING_INTERVAL_S = 10.0
PHASES: dict[ShrinkState, DecreasePhase] = {
    "sealing": "Sealing",
    "draining": "Draining",
    "retired": "Retired",
    "opening": "Opening",
}


def present_count(topic: ObservedTopicState) -> int:
    """Return the number of partitions that are in effect: those that remain after a decrease."""
    count = len(topic.partitions)
    return count if topic.shrink is None else min(topic.shrink.remaining, count)


def plan_count(
    desired: Topic, topic: ObservedTopicState
) -> tuple[AddPartitions | DecreasePartitions | None, Condition | None]:
    """Return the action that makes the number of partitions as desired, and the Synced condition if it is refused."""
    wanted, present = desired.spec.partitions, present_count(topic)
    if wanted is None or wanted == present:
        return None, None
    if wanted > present:
        return AddPartitions(wanted, _increase_event(topic, present, wanted)), None
    if desired.spec.decrease_partitions_to == wanted:
        message = (
            f"decreasing the partitions of topic {topic.name} from {present} to {wanted}: sealing"
            f" {_numbers(wanted, present)}"
        )
        return DecreasePartitions(wanted, KubeEvent("Normal", "PartitionsDecreasing", message)), None
    message = (
        f"the topic has {present} partitions, the spec has {wanted}: to decrease them, set decreasePartitionsTo to"
        f" {wanted}, too. {_numbers(wanted, present).capitalize()} will be sealed, consumers read them to the end, and"
        f" keys map to other partitions. Otherwise set partitions to {present}"
    )
    return None, status.condition(status.SYNCED, "False", "DecreaseNotConfirmed", message, desired)


def _increase_event(topic: ObservedTopicState, present: int, wanted: int) -> KubeEvent:
    if topic.shrink is None:
        message = f"increasing the partitions of topic {topic.name} from {present} to {wanted}"
        return KubeEvent("Normal", "PartitionsAdded", message)
    message = f"opening sealed partitions of topic {topic.name} again: from {present} to {wanted} partitions"
    return KubeEvent("Normal", "PartitionsReopened", message)


def _numbers(first: int, end: int) -> str:
    return f"partition {first}" if first == end - 1 else f"partitions {first} to {end - 1}"


# Status


def reported(
    shrink: ObservedShrink | None, readers: Sequence[ObservedReader] | None, before: TopicStatus
) -> PartitionDecrease | None:
    """Return the status of a decrease. Groups that are unknown now are as in the status before."""
    if shrink is None:
        return None
    waiting: tuple[DrainingReader, ...] = ()
    count, known = 0, before.decrease
    if shrink.state == "draining" and readers is None and known is not None:
        waiting, count = known.waiting_groups, known.waiting_group_count
    elif shrink.state == "draining" and readers is not None:
        count = len(readers)
        waiting = tuple(
            DrainingReader(group=r.group_id, partitions=r.partitions, lag=r.lag) for r in readers[:MAX_READERS]
        )
    return PartitionDecrease(
        phase=PHASES[shrink.state],
        remaining=shrink.remaining,
        sealed=len(shrink.seals),
        seals=tuple(
            TopicSeal(partition=s.partition, offset=s.offset, target=s.target) for s in shrink.seals[:MAX_SEALS]
        ),
        waiting_groups=waiting,
        waiting_group_count=count,
    )


def condition(kind: str, numbers: TopicStatus, desired: Topic) -> Condition | None:
    """Return condition Synced or Progressing of a topic that is being decreased or opened again; None for others."""
    decrease = numbers.decrease
    if decrease is None or decrease.phase == "Retired":
        return None
    truth: status.Truth = "True" if kind == status.PROGRESSING else "False"
    return status.condition(kind, truth, decrease.phase, describe(numbers, decrease), desired)


def describe(numbers: TopicStatus, decrease: PartitionDecrease) -> str:
    """Return what the topic waits for."""
    if decrease.phase == "Opening":
        return f"sealed partitions are being opened again; the topic has {decrease.remaining} partitions"
    shown = numbers.partitions or 0
    start = f"decreasing from {shown} to {decrease.remaining} partitions"
    if decrease.phase == "Sealing":
        surplus = shown - decrease.remaining
        return f"{start}: {min(decrease.sealed, surplus)} of {surplus} surplus partitions are sealed"
    if not decrease.waiting_group_count:
        return f"{start}: waits until a group has read the sealed partitions, or retention has deleted their records"
    named = ", ".join(f'"{each.group}" ({each.lag} records)' for each in decrease.waiting_groups[:MAX_NAMED_READERS])
    more = decrease.waiting_group_count - min(MAX_NAMED_READERS, len(decrease.waiting_groups))
    rest = f" and {more} more" if more > 0 else ""
    return f"{start}: these groups have to read the sealed partitions: {named}{rest}"


def events(before: TopicStatus, now: TopicStatus) -> tuple[KubeEvent, ...]:
    """Return an Event for a new phase."""
    decrease, was = now.decrease, before.decrease
    if was is None or decrease is None:
        is_open = was is not None and was.phase == "Opening" and now.partitions is not None
        return (KubeEvent("Normal", "PartitionsOpened", "all sealed partitions are open again"),) if is_open else ()
    if was.phase == decrease.phase:
        return ()
    if decrease.phase == "Draining":
        return (KubeEvent("Normal", "PartitionsDraining", describe(now, decrease)),)
    if decrease.phase == "Retired" and was.phase in ("Sealing", "Draining"):
        message = f"the surplus partitions are read and hidden: clients see {decrease.remaining} partitions"
        return (KubeEvent("Normal", "PartitionsRetired", message),)
    return ()


def interval_s(numbers: TopicStatus) -> float | None:
    """Return when to look again at a topic that is being decreased or opened again."""
    if numbers.decrease is None or numbers.decrease.phase == "Retired":
        return None
    return DRAINING_INTERVAL_S if numbers.decrease.phase == "Draining" else SEALING_INTERVAL_S
