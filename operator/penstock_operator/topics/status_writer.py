"""Writes what came of a look: the status where it differs, Events, and when to look again. Used by `controller`."""

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
PATIENCE = 3
"""Looks in a row."""
ECHO_S = 10.0
"""For which what was written counts as what comes back."""


class TopicStatusWriter:
    def __init__(self, kube: Kube, now: Callable[[], float], timestamp: Callable[[], str]) -> None:
        self._kube, self._now, self._timestamp = kube, now, timestamp
        self._slots = asyncio.Semaphore(WRITES_AT_A_TIME)
        self._written: dict[ObjectKey, tuple[float, TopicStatus, float | None]] = {}
        self._behind: Counter[ObjectKey] = Counter()

    def echo(self, key: ObjectKey, desired: Topic) -> ReconcileResult | None:
        """What was said of an object whose newest change is nothing but the status that was written just now: there is
        no need to ask the brokers again."""
        written = self._written.pop(key, None)
        if written is None:
            return None
        at, status, look_again_s = written
        is_same = status == desired.status and status.observed_generation == desired.metadata.generation
        return ReconcileResult(look_again_s) if is_same and self._now() - at < ECHO_S else None

    def forget(self, key: ObjectKey) -> None:
        """The next look is to be a real one."""
        self._written.pop(key, None)

    async def tell(self, look: TopicObservation) -> ReconcileResult:
        assert look.plan is not None, "each look ends with a plan"
        async with self._slots:
            error = await self._write(look)
        happenings = list(look.happenings)
        if not (look.is_behind or look.is_short_trouble):
            happenings += [told for told in look.plan.happenings if told not in happenings]
        if happenings and error is None:
            await self._kube.tell(look.body, happenings)
        error = look.error or error
        return ReconcileResult(error=error) if error is not None else ReconcileResult(look.look_again_s)

    def _waits(self, look: TopicObservation) -> bool:
        """Whether brokers are given a moment to show what was done, before a status says that it is not."""
        if not look.is_behind:
            self._behind.pop(look.key, None)
            return False
        self._behind[look.key] += 1
        return self._behind[look.key] <= PATIENCE

    async def _write(self, look: TopicObservation) -> str | None:
        """Returns why it could not."""
        if look.desired is None:
            self._written.pop(look.key, None)
            self._behind.pop(look.key, None)
            return None
        if look.is_short_trouble or self._waits(look):
            return None
        assert look.plan is not None, "each look ends with a plan"
        before = look.desired.status
        status = look.plan.status
        now = msgspec.structs.replace(
            status, conditions=with_conditions(before.conditions, status.conditions, self._timestamp())
        )
        if now == before:
            return None
        meta = look.desired.metadata
        try:
            await self._kube.patch_status(TOPICS, meta.namespace, meta.name, msgspec.to_builtins(now), meta.uid)
        except KubeError as e:
            return f"the status was not written: {e}"
        if look.error is None:
            self._written[look.key] = (self._now(), now, look.look_again_s)
        return None
