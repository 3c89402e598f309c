"""Writes the result of a reconciliation: changed status and Events. Used by `controller`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec

from penstock_operator.engine.ports import ReconcileResult
from penstock_operator.model.common import ObjectKey, with_conditions
from penstock_operator.model.topic import Topic, TopicStatus
from penstock_operator.ports.kube import TOPICS, Kube, KubeError
from penstock_operator.topics.batch import TopicObservation

WRITES_AT_A_TIME = 16
MAX_BEHIND = 3
"""Consecutive reconciliations that may wait for the brokers to report a change."""
ECHO_WINDOW_S = 10.0
"""Time during which a received status is recognised as the operator's own write, in seconds."""


class TopicStatusWriter:
    """Writes statuses and Events of topics."""

    def __init__(self, kube: Kube, now: Callable[[], float], timestamp: Callable[[], str]) -> None:
        self._kube, self._now, self._timestamp = kube, now, timestamp
        self._slots = asyncio.Semaphore(WRITES_AT_A_TIME)
        self._written: dict[ObjectKey, tuple[float, TopicStatus, float | None]] = {}
        self._behind: Counter[ObjectKey] = Counter()

    def echo(self, key: ObjectKey, desired: Topic) -> ReconcileResult | None:
        """Return the previous result if the latest change of the object is only the status that the operator just
        wrote, so that the brokers need not be queried again; otherwise None."""
        written = self._written.pop(key, None)
        if written is None:
            return None
        at, status, requeue_after_s = written
        is_same = status == desired.status and status.observed_generation == desired.metadata.generation
        return ReconcileResult(requeue_after_s) if is_same and self._now() - at < ECHO_WINDOW_S else None

    def forget(self, key: ObjectKey) -> None:
        """Force a full reconciliation of the object."""
        self._written.pop(key, None)

    async def publish(self, observation: TopicObservation) -> ReconcileResult:
        """Write status and Events of an observation. Return the result for the queue."""
        assert observation.plan is not None, "each observation has a plan"
        async with self._slots:
            error = await self._write(observation)
        events = list(observation.events)
        if not (observation.is_behind or observation.is_transient_problem):
            events += [event for event in observation.plan.events if event not in events]
        if events and error is None:
            await self._kube.record_events(observation.body, events)
        error = observation.error or error
        return ReconcileResult(error=error) if error is not None else ReconcileResult(observation.requeue_after_s)

    def _waits(self, observation: TopicObservation) -> bool:
        """Whether to delay the status because the brokers do not report a change yet."""
        if not observation.is_behind:
            self._behind.pop(observation.key, None)
            return False
        self._behind[observation.key] += 1
        return self._behind[observation.key] <= MAX_BEHIND

    async def _write(self, observation: TopicObservation) -> str | None:
        """Write the status if it changed. Return the error, or None."""
        if observation.desired is None:
            self._written.pop(observation.key, None)
            self._behind.pop(observation.key, None)
            return None
        if observation.is_transient_problem or self._waits(observation):
            return None
        assert observation.plan is not None, "each observation has a plan"
        before = observation.desired.status
        status = observation.plan.status
        now = msgspec.structs.replace(
            status, conditions=with_conditions(before.conditions, status.conditions, self._timestamp())
        )
        if now == before:
            return None
        meta = observation.desired.metadata
        try:
            await self._kube.patch_status(TOPICS, meta.namespace, meta.name, msgspec.to_builtins(now), meta.uid)
        except KubeError as e:
            return f"failed to write the status: {e}"
        if observation.error is None:
            self._written[observation.key] = (self._now(), now, observation.requeue_after_s)
        return None
