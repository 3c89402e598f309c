"""The result of planning one object: actions, status, Events, time of the next reconciliation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock_operator.model.common import Model
from penstock_operator.ports.kube import KubeEvent

A = TypeVar("A")
S = TypeVar("S", bound=Model)


@dataclass(frozen=True, slots=True)
class ReconcilePlan(Generic[A, S]):
    """A plan. `actions` are executed in order; the next reconciliation observes their effect. `requeue_after_s` None:
    only events and the resync trigger the next reconciliation."""

    status: S
    actions: tuple[A, ...] = ()
    events: tuple[KubeEvent, ...] = ()
    requeue_after_s: float | None = None
