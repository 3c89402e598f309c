"""Writes the result of a reconciliation: changed status and Events. Used by `controller`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from penstock_operator.engine.ports import ReconcileResult
from penstock_operator.model.common import ObjectKey, with_conditions
from penstock_operator.model.user import User, UserStatus
from penstock_operator.ports.kube import USERS, Kube, KubeError
from penstock_operator.users.observation import UserObservation

ECHO_WINDOW_S = 10.0
"""Time during which a received status is recognised as the operator's own write, in seconds."""


@dataclass(frozen=True, slots=True)
class _WrittenStatus:
    at_s: float
    generation: int
    annotations: Mapping[str, str]
    status: UserStatus
    requeue_after_s: float | None


class UserStatusWriter:
    """Writes statuses and Events of users. `now` is monotonic in seconds, `timestamp` returns RFC 3339."""

    def __init__(self, kube: Kube, now: Callable[[], float], timestamp: Callable[[], str]) -> None:
        self._kube, self._now, self._timestamp = kube, now, timestamp
        self._written: dict[ObjectKey, _WrittenStatus] = {}

    def echo(self, key: ObjectKey, user: User) -> ReconcileResult | None:
        """Return the previous result if the latest change of the object is only the status that the operator just
        wrote; otherwise None. Annotations can request a rotation."""
        written = self._written.pop(key, None)
        if written is None or self._now() - written.at_s >= ECHO_WINDOW_S:
            return None
        is_same = (user.metadata.generation, user.metadata.annotations, user.status) == (
            written.generation,
            written.annotations,
            written.status,
        )
        return ReconcileResult(written.requeue_after_s) if is_same else None

    def forget(self, key: ObjectKey) -> None:
        """Force a full reconciliation of the object."""
        self._written.pop(key, None)

    async def publish(self, observation: UserObservation) -> ReconcileResult:
        """Write status and Events of an observation. Return the result for the queue."""
        error = await self._write(observation)
        events = list(observation.events)
        if observation.plan is not None and not observation.is_transient_problem:
            events += [event for event in observation.plan.events if event not in events]
        if events and error is None:
            await self._kube.record_events(observation.body, events)
        error = observation.error or error
        return ReconcileResult(error=error) if error is not None else ReconcileResult(observation.requeue_after_s)

    async def _write(self, observation: UserObservation) -> str | None:
        """Write the status if it changed. Return the error, or None."""
        user, plan = observation.desired, observation.plan
        if user is None or plan is None or observation.is_transient_problem:
            self.forget(observation.key)
            return None
        conditions = with_conditions(user.status.conditions, plan.status.conditions, self._timestamp())
        status = msgspec.structs.replace(plan.status, conditions=conditions)
        if status == user.status:
            return None
        meta = user.metadata
        try:
            await self._kube.patch_status(USERS, meta.namespace, meta.name, msgspec.to_builtins(status), meta.uid)
        except KubeError as error:
            return f"failed to write the status: {error}"
        if observation.error is None:
            self._written[observation.key] = _WrittenStatus(
                self._now(), meta.generation, meta.annotations, status, observation.requeue_after_s
            )
        return None
