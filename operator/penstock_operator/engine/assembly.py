"""Puts the engine's parts together around controllers that are handed in; called by `main`, and by tests with fewer."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.runtime.clock import Clock
from penstock_operator.engine.copies import CLUSTER_LABEL, Copies
from penstock_operator.engine.freshness import Freshness
from penstock_operator.engine.lease import LeaderLease
from penstock_operator.engine.metrics import OperatorMetrics
from penstock_operator.engine.operator import OURS, OWNED, Operator, OperatorParts
from penstock_operator.engine.ports import ResourceController
from penstock_operator.engine.queue import WorkQueue
from penstock_operator.engine.routing import Routing, lane_of
from penstock_operator.engine.runner import RESYNC_S, ReconcileRunner
from penstock_operator.engine.sweep import Sweep
from penstock_operator.engine.watching import Watching
from penstock_operator.model.common import Kind
from penstock_operator.ports.kube import CONSUMER_GROUPS, Kube


@dataclass(frozen=True, slots=True)
class OperatorIdentity:
    """Of one process: what it watches (all namespaces where none are named) and how it is told from others."""

    namespaces: tuple[str, ...]
    identity: str
    lease_namespace: str
    lease_name: str


@dataclass(slots=True)
class ControllerSet:
    """The controllers, and what goes on beside them while this process leads, by name."""

    controllers: Mapping[Kind, ResourceController]
    background: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=dict)


@dataclass(slots=True)
class OperatorRuntime:
    """What controllers are made with. `lease_kube` has threads of its own: a renewal must not wait behind others."""

    kube: Kube
    lease_kube: Kube
    clock: Clock
    copies: Copies
    queue: WorkQueue
    metrics: OperatorMetrics
    freshness: Freshness


Connect = Callable[[Freshness], tuple[Kube, Kube]]


def hull(clock: Clock, connect: Connect) -> OperatorRuntime:
    """`connect` makes the two connections to the API server, the second for the lease."""

    def now() -> float:
        return clock.boot_ms() / 1_000

    metrics, copies = OperatorMetrics(), Copies(now)
    jitter = random.Random().random  # noqa: S311 - spreads load, guards nothing
    queue = WorkQueue(jitter, lambda key: lane_of(copies, key))
    freshness = Freshness(now, copies, metrics, (*OURS, *OWNED))
    kube, lease_kube = connect(freshness)
    return OperatorRuntime(kube, lease_kube, clock, copies, queue, metrics, freshness)


def assembled(
    who: OperatorIdentity, made: OperatorRuntime, crew: ControllerSet, *, resync_s: float = RESYNC_S
) -> Operator:
    """The operator, ready to run."""
    selectors = {resource: {CLUSTER_LABEL: ""} if resource in OWNED else {} for resource in (*OURS, *OWNED)}
    sweep = Sweep(made.kube, made.copies, made.metrics, who.namespaces, selectors)
    watching = Watching(made.copies, sweep.relisted, dict.fromkeys(OWNED, CLUSTER_LABEL), who.namespaces)
    made.freshness.watching = watching
    made.metrics.watch_groups(lambda: made.copies.of(CONSUMER_GROUPS))
    leases: list[LeaderLease] = []

    def make_lease(changed: Callable[[bool], None]) -> LeaderLease:
        lease = LeaderLease(made.lease_kube, made.clock, who.lease_namespace, who.lease_name, who.identity, changed)
        leases.append(lease)
        return lease

    def may_act() -> bool:
        return bool(leases) and leases[0].is_held()

    def if_acting(count: Callable[[Kind], int]) -> Callable[[Kind], int]:
        # Keys that nobody here looks at any more stay as they were: that is no news of the objects.
        return lambda kind: count(kind) if may_act() else 0

    made.metrics.watch_queue(if_acting(made.queue.depth), if_acting(made.queue.failing))
    runners = [ReconcileRunner(kind, one, made.queue, made.metrics, may_act) for kind, one in crew.controllers.items()]
    return Operator(
        OperatorParts(
            kube=made.kube,
            queue=made.queue,
            routing=Routing(made.copies, made.queue),
            metrics=made.metrics,
            sweep=sweep,
            watching=watching,
            freshness=made.freshness,
            runners=runners,
            make_lease=make_lease,
            background=crew.background,
            resync_s=resync_s,
        )
    )
