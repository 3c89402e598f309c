"""Offset resets and starting offsets. Used by `reconcile.group`.

A reset has four steps: write the plan to the status (Planned), commit the offsets, store the reset id with the group
(`penstock.reset.id`), write Done to the status. An interrupted reset continues: the operator compares the committed
offsets with the plan and does not repeat a commit, because consumers may have made progress since. The brokers store
the id, so reapplying the manifest, another object or another operator does not repeat the reset. Only the newest id is
stored: applying an older one is a new reset. A failed reset is not retried; it needs a new id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from penstock_operator.model.group import ConsumerGroup, OffsetReset, ResetStatus
from penstock_operator.ports.brokers import RESET_ID, ObservedGroupState
from penstock_operator.reconcile.group.types import At, ObservedGroup, is_idle

EARLIEST, LATEST = -2, -1
SHOWN_CHANGES = 100
RETRY_HINT = "to retry, set another reset id"
ARROW = " → "
Phase = Literal["Planned", "Done", "Refused", "Failed"]
Progress = Literal["none", "part", "all", "lost"]


def is_done(reset: OffsetReset, desired: ConsumerGroup, group: ObservedGroupState | None) -> bool:
    """Whether the reset is done, by the id stored with the group, or by the status if the brokers lost it."""
    if group is not None and group.settings.get(RESET_ID) == reset.id:
        return True
    previous = desired.status.reset
    return previous is not None and previous.id == reset.id and previous.phase == "Done"


def has_failed(reset: OffsetReset, desired: ConsumerGroup) -> bool:
    """Whether the reset has failed permanently, so that it does not happen unexpectedly later. A dry run may be planned
    again."""
    previous = desired.status.reset
    return (
        previous is not None
        and (previous.id, previous.phase) == (reset.id, "Failed")
        and not is_dry_run(reset, desired)
    )


def is_dry_run(reset: OffsetReset, desired: ConsumerGroup) -> bool:
    """Whether the reset is only planned: dry run, or a paused object."""
    return reset.dry_run or desired.spec.paused


def is_finished(reset: OffsetReset, desired: ConsumerGroup, group: ObservedGroupState | None) -> bool:
    """Whether the reset is done or has failed."""
    return has_failed(reset, desired) or is_done(reset, desired, group)


def topics_to_describe(desired: ConsumerGroup, group: ObservedGroupState | None) -> frozenset[str]:
    """Return the topics whose number of partitions is needed."""
    spec = desired.spec
    needed: set[str] = set()
    if spec.reset is not None and not is_finished(spec.reset, desired, group):
        needed.update(spec.reset.topics)
    if needs_starting_offsets(desired, group) and spec.starting_offsets is not None:
        needed.update(spec.starting_offsets.topics)
    return frozenset(needed)


def offset_queries(
    desired: ConsumerGroup, group: ObservedGroupState | None, partitions: Mapping[str, int]
) -> dict[At, int]:
    """Return the offsets to query: time in ms since the epoch by partition (-2 earliest, -1 latest). Raises
    `ValueError` for an invalid timestamp."""
    reset = desired.spec.reset
    if reset is not None and not is_finished(reset, desired, group):
        if reset.to == "offset":
            return {}
        time = {"earliest": EARLIEST, "latest": LATEST}.get(reset.to)
        at = max(reset.timestamp_ms or 0, 0) if time is None else time  # negative times are special in ListOffsets
        return dict.fromkeys(_partitions(reset, group, partitions), at)
    start = desired.spec.starting_offsets
    if start is not None and needs_starting_offsets(desired, group):
        at = EARLIEST if start.at == "earliest" else LATEST
        return {(topic, p): at for topic in start.topics for p in range(partitions.get(topic, 0))}
    return {}


def range_partitions(
    desired: ConsumerGroup, group: ObservedGroupState | None, partitions: Mapping[str, int]
) -> tuple[At, ...]:
    """Return the partitions whose start and end offsets are needed, for a reset to an offset."""
    reset = desired.spec.reset
    if reset is None or reset.to != "offset" or is_finished(reset, desired, group):
        return ()
    return _partitions(reset, group, partitions)


def needs_starting_offsets(desired: ConsumerGroup, group: ObservedGroupState | None) -> bool:
    """Whether starting offsets must be committed: the group is idle and has no offsets."""
    return desired.spec.starting_offsets is not None and is_idle(group) and (group is None or not group.offsets)


def missing_topics(desired: ConsumerGroup, observed: ObservedGroup) -> list[str]:
    """Return the missing topics for which starting offsets wait. Committing a part would give the group offsets, and
    the operator would not commit the rest."""
    start = desired.spec.starting_offsets
    if start is None or desired.spec.reset is not None or not needs_starting_offsets(desired, observed.group):
        return []
    return sorted(topic for topic in start.topics if topic not in observed.partitions)


def targets(desired: ConsumerGroup, observed: ObservedGroup) -> dict[At, int]:
    """Return the target offset by partition of a pending reset."""
    reset = desired.spec.reset
    assert reset is not None, "the spec has no reset"
    if reset.to == "offset":
        wanted = reset.offset or 0
        return {at: min(max(wanted, first), end) for at, (first, end) in observed.ranges.items()}
    return dict(observed.offsets)


def progress(desired: ConsumerGroup, group: ObservedGroupState | None) -> Progress:
    """Return the progress of a planned reset: compares the committed offsets with the plan's "from → to". "lost": an
    offset is at neither, because a consumer committed after the plan or after the reset."""
    reset, previous = desired.spec.reset, desired.status.reset
    if (
        reset is None
        or previous is None
        or (previous.id, previous.phase, previous.message) != (reset.id, "Planned", "")
    ):
        return "none"
    now = {f"{o.topic}-{o.partition}": str(o.committed) for o in group.offsets} if group is not None else {}
    is_before, is_after, is_either = True, True, True
    for change in previous.changes:
        place, _, steps = change.rpartition(": ")
        before, _, after = steps.partition(ARROW)
        at = now.get(place, "none")
        is_before, is_after = is_before and at == before, is_after and at == after
        is_either = is_either and at in (before, after)
    return "none" if is_before else "all" if is_after else "part" if is_either else "lost"


def failed_status(desired: ConsumerGroup) -> ResetStatus:
    """Return the status of an interrupted reset whose progress is unknown."""
    reset, previous = desired.spec.reset, desired.status.reset
    assert reset is not None, "the spec has no reset"
    assert previous is not None, "the status has no plan"
    why = "interrupted, and a consumer has committed since: offsets match neither the old nor the new values"
    return msgspec.structs.replace(previous, phase="Failed", message=f"{why}; {RETRY_HINT}")


def plan_reset(desired: ConsumerGroup, observed: ObservedGroup) -> tuple[ResetStatus, dict[At, int]]:
    """Return the status of a pending reset, and the offsets to commit now (empty: none)."""
    reset = desired.spec.reset
    assert reset is not None, "the spec has no reset"
    wanted = targets(desired, observed)
    missing = sorted(topic for topic in reset.topics if topic not in observed.partitions)
    if missing:
        return _reset_status(reset, "Failed", f"topic {', '.join(missing[:5])} does not exist; {RETRY_HINT}"), {}
    if not wanted:
        why = "no offsets to reset: the group has no committed offsets; set reset.topics"
        if reset.partitions:
            why = "no offsets to reset: the topic has none of these partitions"
        return _reset_status(reset, "Failed", f"{why}; {RETRY_HINT}"), {}
    before = {(o.topic, o.partition): o.committed for o in observed.group.offsets} if observed.group else {}
    changes = tuple(
        f"{topic}-{partition}: {before.get((topic, partition), 'none')}{ARROW}{offset}"
        for (topic, partition), offset in sorted(wanted.items())
    )
    if not is_idle(observed.group):
        members = observed.group.members if observed.group else 0
        why = f"the group has {members} members: stop them; the reset continues when the group is empty"
        return _reset_status(reset, "Refused", why, changes), {}
    if desired.spec.paused:
        return _reset_status(reset, "Planned", "the object is paused", changes), {}
    if reset.dry_run:
        return _reset_status(reset, "Planned", "dryRun is true: offsets are not changed", changes), {}
    previous = desired.status.reset
    is_shown = previous is not None and previous.id == reset.id and previous.phase == "Planned" and not previous.message
    return _reset_status(reset, "Planned", "", changes), wanted if is_shown else {}


def completed_status(desired: ConsumerGroup) -> ResetStatus:
    """Return the status of a completed reset."""
    reset, previous = desired.spec.reset, desired.status.reset
    assert reset is not None, "the spec has no reset"
    if previous is not None and previous.id == reset.id:
        message = "" if previous.phase in ("Planned", "Done") else "completed"
        if previous.phase == "Done":
            return previous
        return ResetStatus(
            id=reset.id, phase="Done", message=message, changes=previous.changes, total_changes=previous.total_changes
        )
    return ResetStatus(id=reset.id, phase="Done", message="already done: a reset is done once per id")


def _reset_status(reset: OffsetReset, phase: Phase, message: str, changes: tuple[str, ...] = ()) -> ResetStatus:
    return ResetStatus(
        id=reset.id, phase=phase, message=message, changes=changes[:SHOWN_CHANGES], total_changes=len(changes)
    )


def _partitions(reset: OffsetReset, group: ObservedGroupState | None, partitions: Mapping[str, int]) -> tuple[At, ...]:
    if not reset.topics:
        return tuple((o.topic, o.partition) for o in group.offsets) if group is not None else ()
    chosen = set(reset.partitions)
    return tuple(
        (topic, partition)
        for topic in reset.topics
        for partition in range(partitions.get(topic, 0))
        if not chosen or partition in chosen
    )
