"""Setting a group's offsets: a reset that is done once, and where a group begins. Used by `reconcile.group`.

A reset goes: its plan is written into the status (Planned), then offsets are committed, then its id is set with the
group (`penstock.reset.id`), then the status says Done. Wherever that breaks off it goes on: what is committed is
compared with the plan, so that a commit that was done is not done again, as consumers may have read since. The id is
kept by the brokers, so neither applying the manifest again, nor another object, nor another operator does it a second
time. The group's newest id counts: an older one applied after it is a new wish. One that cannot be done is Failed, and
stays so: another try is another id.
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
AGAIN = "for another try give the reset another id"
ARROW = " → "
Phase = Literal["Planned", "Done", "Refused", "Failed"]
Progress = Literal["none", "part", "all", "lost"]


def is_done(reset: OffsetReset, desired: ConsumerGroup, group: ObservedGroupState | None) -> bool:
    """By what the brokers keep, or where they lost that, by the status."""
    if group is not None and group.settings.get(RESET_ID) == reset.id:
        return True
    told = desired.status.reset
    return told is not None and told.id == reset.id and told.phase == "Done"


def has_failed(reset: OffsetReset, desired: ConsumerGroup) -> bool:
    """Once and for all: what could not be done when it was asked for must not be done when nobody expects it any more.
    A plan that is only looked at may become another."""
    told = desired.status.reset
    return told is not None and (told.id, told.phase) == (reset.id, "Failed") and not is_only_shown(reset, desired)


def is_only_shown(reset: OffsetReset, desired: ConsumerGroup) -> bool:
    return reset.dry_run or desired.spec.paused


def is_over(reset: OffsetReset, desired: ConsumerGroup, group: ObservedGroupState | None) -> bool:
    return has_failed(reset, desired) or is_done(reset, desired, group)


def topics_asked(desired: ConsumerGroup, group: ObservedGroupState | None) -> frozenset[str]:
    """Of which topics the partitions have to be known."""
    spec = desired.spec
    asked: set[str] = set()
    if spec.reset is not None and not is_over(spec.reset, desired, group):
        asked.update(spec.reset.topics)
    if begins(desired, group) and spec.starting_offsets is not None:
        asked.update(spec.starting_offsets.topics)
    return frozenset(asked)


def questions(desired: ConsumerGroup, group: ObservedGroupState | None, partitions: Mapping[str, int]) -> dict[At, int]:
    """Which offsets have to be known, by time in ms since 1970 (-2 earliest, -1 latest). Raises `ValueError` for a
    timestamp that is none."""
    reset = desired.spec.reset
    if reset is not None and not is_over(reset, desired, group):
        if reset.to == "offset":
            return {}
        time = {"earliest": EARLIEST, "latest": LATEST}.get(reset.to)
        at = max(reset.timestamp_ms or 0, 0) if time is None else time  # below 0 are the protocol's words for others
        return dict.fromkeys(_places(reset, group, partitions), at)
    start = desired.spec.starting_offsets
    if start is not None and begins(desired, group):
        at = EARLIEST if start.at == "earliest" else LATEST
        return {(topic, p): at for topic in start.topics for p in range(partitions.get(topic, 0))}
    return {}


def ranges_asked(
    desired: ConsumerGroup, group: ObservedGroupState | None, partitions: Mapping[str, int]
) -> tuple[At, ...]:
    """Of which partitions first and end have to be known: those that are set to an offset by number."""
    reset = desired.spec.reset
    if reset is None or reset.to != "offset" or is_over(reset, desired, group):
        return ()
    return _places(reset, group, partitions)


def begins(desired: ConsumerGroup, group: ObservedGroupState | None) -> bool:
    """Whether starting offsets are to be set."""
    return desired.spec.starting_offsets is not None and is_idle(group) and (group is None or not group.offsets)


def missing_topics(desired: ConsumerGroup, seen: ObservedGroup) -> list[str]:
    """Topics that starting offsets wait for: set for some only, a group has offsets, and is left alone."""
    start = desired.spec.starting_offsets
    if start is None or desired.spec.reset is not None or not begins(desired, seen.group):
        return []
    return sorted(topic for topic in start.topics if topic not in seen.partitions)


def targets(desired: ConsumerGroup, seen: ObservedGroup) -> dict[At, int]:
    """Where a reset that is not done sets each partition."""
    reset = desired.spec.reset
    assert reset is not None, "no reset is asked for"
    if reset.to == "offset":
        wanted = reset.offset or 0
        return {at: min(max(wanted, first), end) for at, (first, end) in seen.ranges.items()}
    return dict(seen.offsets)


def progress(desired: ConsumerGroup, group: ObservedGroupState | None) -> Progress:
    """How far a reset has come whose plan was written: where offsets are, beside the plan's "from → to". "lost": at
    neither, as after a commit somebody has read on, or has just read on after the plan."""
    reset, told = desired.spec.reset, desired.status.reset
    if reset is None or told is None or (told.id, told.phase, told.message) != (reset.id, "Planned", ""):
        return "none"
    now = {f"{o.topic}-{o.partition}": str(o.committed) for o in group.offsets} if group is not None else {}
    is_before, is_after, is_either = True, True, True
    for change in told.changes:
        place, _, steps = change.rpartition(": ")
        before, _, after = steps.partition(ARROW)
        at = now.get(place, "none")
        is_before, is_after = is_before and at == before, is_after and at == after
        is_either = is_either and at in (before, after)
    return "none" if is_before else "all" if is_after else "part" if is_either else "lost"


def given_up(desired: ConsumerGroup) -> ResetStatus:
    """Of a reset of which nobody can tell any more whether it was done."""
    reset, told = desired.spec.reset, desired.status.reset
    assert reset is not None, "no reset is asked for"
    assert told is not None, "nothing was planned"
    why = "it broke off, and somebody has read since: offsets are neither where they were nor where it sets them"
    return msgspec.structs.replace(told, phase="Failed", message=f"{why}; {AGAIN}")


def planned(desired: ConsumerGroup, seen: ObservedGroup) -> tuple[ResetStatus, dict[At, int]]:
    """The status of a reset that is not done, and the offsets that are to be committed now (none: not now)."""
    reset = desired.spec.reset
    assert reset is not None, "no reset is asked for"
    wanted = targets(desired, seen)
    missing = sorted(topic for topic in reset.topics if topic not in seen.partitions)
    if missing:
        return _told(reset, "Failed", f"there is no topic {', '.join(missing[:5])}; {AGAIN}"), {}
    if not wanted:
        why = "there is nothing to set: the group has no offsets; name the topics in reset.topics"
        if reset.partitions:
            why = "there is nothing to set: the topic has none of these partitions"
        return _told(reset, "Failed", f"{why}; {AGAIN}"), {}
    before = {(o.topic, o.partition): o.committed for o in seen.group.offsets} if seen.group else {}
    changes = tuple(
        f"{topic}-{partition}: {before.get((topic, partition), 'none')}{ARROW}{offset}"
        for (topic, partition), offset in sorted(wanted.items())
    )
    if not is_idle(seen.group):
        members = seen.group.members if seen.group else 0
        why = f"the group has members ({members}): stop them; the reset is done as soon as the group is empty"
        return _told(reset, "Refused", why, changes), {}
    if desired.spec.paused:
        return _told(reset, "Planned", "the object is paused", changes), {}
    if reset.dry_run:
        return _told(reset, "Planned", "dryRun is set: nothing is done", changes), {}
    told = desired.status.reset
    is_shown = told is not None and told.id == reset.id and told.phase == "Planned" and not told.message
    return _told(reset, "Planned", "", changes), wanted if is_shown else {}


def done(desired: ConsumerGroup) -> ResetStatus:
    reset, told = desired.spec.reset, desired.status.reset
    assert reset is not None, "no reset is asked for"
    if told is not None and told.id == reset.id:
        message = "" if told.phase in ("Planned", "Done") else "it was done"
        if told.phase == "Done":
            return told
        return ResetStatus(
            id=reset.id, phase="Done", message=message, changes=told.changes, total_changes=told.total_changes
        )
    return ResetStatus(id=reset.id, phase="Done", message="it was done before: a reset is done once for each id")


def _told(reset: OffsetReset, phase: Phase, message: str, changes: tuple[str, ...] = ()) -> ResetStatus:
    return ResetStatus(
        id=reset.id, phase=phase, message=message, changes=changes[:SHOWN_CHANGES], total_changes=len(changes)
    )


def _places(reset: OffsetReset, group: ObservedGroupState | None, partitions: Mapping[str, int]) -> tuple[At, ...]:
    if not reset.topics:
        return tuple((o.topic, o.partition) for o in group.offsets) if group is not None else ()
    chosen = set(reset.partitions)
    return tuple(
        (topic, partition)
        for topic in reset.topics
        for partition in range(partitions.get(topic, 0))
        if not chosen or partition in chosen
    )
