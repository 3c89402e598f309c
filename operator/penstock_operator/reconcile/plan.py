"""What reconciling one object comes to: what to do, its status, what to tell people, and when to look again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock_operator.model.common import Model
from penstock_operator.ports.kube import KubeEvent

A = TypeVar("A")
S = TypeVar("S", bound=Model)


@dataclass(frozen=True, slots=True)
class ReconcilePlan(Generic[A, S]):
    """`actions` are carried out in their order; the next look, soon after, sees what came of them. `status` is written
    where it differs from what is there. `look_again_s` None: nothing is to be waited for but events and the resync."""

    status: S
    actions: tuple[A, ...] = ()
    happenings: tuple[KubeEvent, ...] = ()
    look_again_s: float | None = None
