"""Replays of dead letters. Used by `reconcile.group`.

A replay has five steps: write the end offsets of the dead-letter topic to the status (Running), send the letters, write
the final counts to the status, store the replay id with the group (`penstock.replay.id`), write Done to the status. An
interrupted replay continues with the stored end offsets: the brokers store which letters were sent, in the transaction
that sends them. The brokers store the id too, so reapplying the manifest, another object or another operator does not
repeat the replay.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from penstock_operator.model.group import ConsumerGroup
from penstock_operator.model.replay import DeadLetterReplay, ReplayStatus
from penstock_operator.ports.brokers import DEAD_LETTER_TOPIC, REPLAY_ID, ObservedGroupState, ReplayCount, ReplayRequest
from penstock_operator.ports.kube import KubeEvent
from penstock_operator.reconcile.group.types import Action, GroupSettingsPatch, ObservedGroup, ReplayLetters

RETRY_HINT = "to retry, set another replay id"
PAUSED = "the object is paused"
SOON_S = 0.5
TOPIC_RETRY_S = 15.0
"""Requeue interval while the dead-letter topic does not exist."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The part of a group's plan that concerns the replay of its dead letters."""

    status: ReplayStatus | None = None
    actions: tuple[Action, ...] = ()
    events: tuple[KubeEvent, ...] = ()
    requeue_after_s: float | None = None


def topic_to_query(desired: ConsumerGroup, group: ObservedGroupState | None) -> str | None:
    """Return the dead-letter topic whose start and end offsets are needed to start the replay, or None."""
    replay, previous = desired.spec.replay_dead_letters, _previous(desired)
    if replay is None or desired.spec.paused or is_done(desired, group) or _has_failed(previous):
        return None
    return None if previous is not None and previous.end_offsets else _letter_topic(group)


def is_done(desired: ConsumerGroup, group: ObservedGroupState | None) -> bool:
    """Whether the replay is done, by the id stored with the group, or by the status if the brokers lost it."""
    replay, previous = desired.spec.replay_dead_letters, _previous(desired)
    if replay is not None and group is not None and group.settings.get(REPLAY_ID) == replay.id:
        return True
    return previous is not None and previous.phase == "Done"


def plan_replay(desired: ConsumerGroup, observed: ObservedGroup) -> ReplayPlan:
    """Plan the replay of `desired`. Without one, the plan is empty and a running replay stops."""
    replay, previous = desired.spec.replay_dead_letters, _previous(desired)
    if replay is None:
        return ReplayPlan()
    if is_done(desired, observed.group):
        return _complete(replay, previous)
    if previous is not None and _has_failed(previous):
        return ReplayPlan(previous)
    topic, why = _letter_topic(observed.group), refusal(replay, observed.group)
    if why:
        return _stop(previous, ReplayStatus(id=replay.id, phase="Refused", message=why))
    if desired.spec.paused:
        paused = previous or ReplayStatus(id=replay.id, phase="Planned")
        return _stop(previous, msgspec.structs.replace(paused, phase="Planned", message=PAUSED))
    if previous is None or not previous.end_offsets:
        return _start(replay, topic, observed, previous)
    return _continue(desired, replay, observed, previous)


def refusal(replay: DeadLetterReplay, group: ObservedGroupState | None) -> str:
    """Return why the replay cannot start, or ""."""
    topic = _letter_topic(group)
    if not topic:
        return f"the group has no dead-letter topic: set {DEAD_LETTER_TOPIC} in spec.config"
    if replay.to == topic:
        return f'replayDeadLetters.to "{topic}" is the dead-letter topic itself: set another topic with another id'
    return ""


def run_name(uid: str, replay_id: str) -> str:
    """Return the name of a replay at the brokers."""
    return hashlib.sha256(f"{uid}\n{replay_id}".encode()).hexdigest()[:16]


def _start(replay: DeadLetterReplay, topic: str, observed: ObservedGroup, previous: ReplayStatus | None) -> ReplayPlan:
    if not observed.letters:
        missing = ReplayStatus(id=replay.id, phase="Refused", message=f'topic "{topic}" does not exist: no letters yet')
        return _stop(previous, missing, TOPIC_RETRY_S)
    total = sum(end - first for first, end in observed.letters)
    status = ReplayStatus(
        id=replay.id,
        phase="Running",
        topic=topic,
        remaining=total,
        end_offsets=tuple(end for _, end in observed.letters),
    )
    verb = "counting" if replay.dry_run else "replaying"
    return ReplayPlan(
        status,
        events=(_event("ReplayStarted", replay.id, f"{verb} {total} letters of {topic}"),),
        requeue_after_s=SOON_S,
    )


def _continue(
    desired: ConsumerGroup, replay: DeadLetterReplay, observed: ObservedGroup, previous: ReplayStatus
) -> ReplayPlan:
    """Continue a replay whose end offsets are in the status."""
    if replay.dry_run and previous.phase == "Planned" and previous.message != PAUSED:
        return ReplayPlan(previous)
    request = _request(desired, replay, previous)
    ongoing = observed.replay if observed.replay is not None and observed.replay.request == request else None
    if ongoing is None:
        status = msgspec.structs.replace(previous, phase="Running", message="")
        return ReplayPlan(status, (ReplayLetters(request),))
    status = previous if ongoing.count is None else _counted(previous, ongoing.count)
    status = msgspec.structs.replace(status, phase="Running", message=ongoing.error)
    if ongoing.has_failed:
        failed = msgspec.structs.replace(status, phase="Failed", message=f"{ongoing.error}; {RETRY_HINT}")
        return ReplayPlan(failed, events=(_event("ReplayFailed", replay.id, failed.message),))
    if not ongoing.is_finished:
        return ReplayPlan(status, (ReplayLetters(request),))
    if replay.dry_run:
        return _complete_dry_run(replay, status)
    # The final counts are in the status before the id is stored: afterwards only the status has them.
    actions: tuple[Action, ...] = (ReplayLetters(request),)
    if status == previous:
        actions = (GroupSettingsPatch({REPLAY_ID: replay.id}), *actions)
    return ReplayPlan(status, actions, requeue_after_s=SOON_S)


def _complete(replay: DeadLetterReplay, previous: ReplayStatus | None) -> ReplayPlan:
    if previous is None:
        why = "already done: a replay is done once per id"
        return ReplayPlan(ReplayStatus(id=replay.id, phase="Done", message=why))
    if previous.phase == "Done":
        return ReplayPlan(previous)
    done = msgspec.structs.replace(previous, phase="Done", message="", remaining=0)
    text = f"replayed {done.replayed} letters; the filters left out {done.skipped}"
    if done.without_record:
        text += f"; {done.without_record} cannot be replayed: they lack the original record"
    return ReplayPlan(done, events=(_event("ReplayDone", replay.id, text),))


def _complete_dry_run(replay: DeadLetterReplay, status: ReplayStatus) -> ReplayPlan:
    why = f"dryRun is true: {status.replayed} letters would be replayed"
    planned = msgspec.structs.replace(status, phase="Planned", message=why, replayed=0, remaining=status.replayed)
    return ReplayPlan(planned, events=(_event("ReplayPlanned", replay.id, why),))


def _stop(previous: ReplayStatus | None, status: ReplayStatus, requeue_after_s: float | None = None) -> ReplayPlan:
    is_new = previous is None or (previous.phase, previous.message) != (status.phase, status.message)
    events = (_event(f"Replay{status.phase}", status.id, status.message),) if is_new else ()
    return ReplayPlan(status, events=events, requeue_after_s=requeue_after_s)


def _request(desired: ConsumerGroup, replay: DeadLetterReplay, status: ReplayStatus) -> ReplayRequest:
    return ReplayRequest(
        run=run_name(desired.metadata.uid, replay.id),
        topic=status.topic or "",
        group_id=desired.group_id,
        ends=status.end_offsets,
        rate_per_s=replay.rate,
        source_topic=replay.topic or "",
        reason=replay.reason or "",
        since_ms=replay.since_ms,
        until_ms=replay.until_ms,
        target=replay.to or "",
        is_dry_run=replay.dry_run,
    )


def _counted(status: ReplayStatus, count: ReplayCount) -> ReplayStatus:
    return msgspec.structs.replace(
        status,
        replayed=count.replayed,
        skipped=count.skipped,
        without_record=count.without_record,
        remaining=count.remaining,
    )


def _previous(desired: ConsumerGroup) -> ReplayStatus | None:
    """Return the status if it is that of the replay in the spec."""
    replay, previous = desired.spec.replay_dead_letters, desired.status.replay
    return previous if replay is not None and previous is not None and previous.id == replay.id else None


def _has_failed(previous: ReplayStatus | None) -> bool:
    return previous is not None and previous.phase == "Failed"


def _letter_topic(group: ObservedGroupState | None) -> str:
    return group.settings.get(DEAD_LETTER_TOPIC, "") if group is not None else ""


def _event(reason: str, replay_id: str, text: str) -> KubeEvent:
    is_bad = reason in ("ReplayRefused", "ReplayFailed")
    return KubeEvent("Warning" if is_bad else "Normal", reason, f"replay {replay_id}: {text}")
