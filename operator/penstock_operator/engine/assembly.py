"""Builds the operator from its components. Called by `main` and tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.runtime.clock import Clock
from penstock_operator.engine.freshness import Freshness
from penstock_operator.engine.lease import LeaderLease
from penstock_operator.engine.metrics import OperatorMetrics
from penstock_operator.engine.object_cache import CLUSTER_LABEL, ObjectCache
from penstock_operator.engine.operator import OURS, OWNED, Operator, OperatorComponents
from penstock_operator.engine.ports import ResourceController
from penstock_operator.engine.queue import WorkQueue
from penstock_operator.engine.relist import PeriodicRelist
from penstock_operator.engine.routing import Routing, lane_of
from penstock_operator.engine.runner import RESYNC_S, ReconcileRunner
from penstock_operator.engine.watching import WatchStreams
from penstock_operator.model.common import Kind
from penstock_operator.ports.kube import CLUSTERS, CONSUMER_GROUPS, Kube


@dataclass(frozen=True, slots=True)
class OperatorIdentity:
    """Identity of one process for leader election, and the namespaces that it watches (empty: all)."""

    namespaces: tuple[str, ...]
    identity: str
    lease_namespace: str
    lease_name: str


@dataclass(slots=True)
class ControllerSet:
    """Controllers by kind, and background tasks that run while this process is the leader, by name."""

    controllers: Mapping[Kind, ResourceController]
    background: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = field(default_factory=dict)


@dataclass(slots=True)
class OperatorRuntime:
    """Components shared by controllers. `lease_kube` has its own threads: a renewal must not wait for other
    requests."""

    kube: Kube
    lease_kube: Kube
    clock: Clock
    cache: ObjectCache
    queue: WorkQueue
    metrics: OperatorMetrics
    freshness: Freshness


Connect = Callable[[Freshness], tuple[Kube, Kube]]


def create_runtime(clock: Clock, connect: Connect) -> OperatorRuntime:
    """Return the shared components. `connect` returns two API clients; the second is for the Lease."""

    def now() -> float:
        return clock.boot_ms() / 1_000

    metrics, cache = OperatorMetrics(), ObjectCache(now)
    jitter = random.Random().random  # noqa: S311 - spreads load, guards nothing
    queue = WorkQueue(jitter, lambda key: lane_of(cache, key))
    freshness = Freshness(now, cache, metrics, (*OURS, *OWNED))
    kube, lease_kube = connect(freshness)
    return OperatorRuntime(kube, lease_kube, clock, cache, queue, metrics, freshness)


def build_operator(
    identity: OperatorIdentity, runtime: OperatorRuntime, controller_set: ControllerSet, *, resync_s: float = RESYNC_S
) -> Operator:
    """Return the operator, ready to run."""
    selectors = {resource: {CLUSTER_LABEL: ""} if resource in OWNED else {} for resource in (*OURS, *OWNED)}
    sweep = PeriodicRelist(runtime.kube, runtime.cache, runtime.metrics, identity.namespaces, selectors)
    watching = WatchStreams(runtime.cache, sweep.relisted, dict.fromkeys(OWNED, CLUSTER_LABEL), identity.namespaces)
    runtime.freshness.watching = watching
    runtime.metrics.watch_groups(lambda: runtime.cache.list_objects(CONSUMER_GROUPS))
    runtime.metrics.watch_clusters(lambda: runtime.cache.list_objects(CLUSTERS))
    leases: list[LeaderLease] = []

    def make_lease(changed: Callable[[bool], None]) -> LeaderLease:
        lease = LeaderLease(
            runtime.lease_kube, runtime.clock, identity.lease_namespace, identity.lease_name, identity.identity, changed
        )
        leases.append(lease)
        return lease

    def may_act() -> bool:
        return bool(leases) and leases[0].is_held()

    def if_acting(count: Callable[[Kind], int]) -> Callable[[Kind], int]:
        # The queue of a standby keeps stale keys, which say nothing about the objects.
        return lambda kind: count(kind) if may_act() else 0

    runtime.metrics.watch_queue(if_acting(runtime.queue.depth), if_acting(runtime.queue.failing))
    runners = [
        ReconcileRunner(kind, one, runtime.queue, runtime.metrics, may_act)
        for kind, one in controller_set.controllers.items()
    ]
    return Operator(
        OperatorComponents(
            kube=runtime.kube,
            queue=runtime.queue,
            routing=Routing(runtime.cache, runtime.queue),
            metrics=runtime.metrics,
            sweep=sweep,
            watching=watching,
            freshness=runtime.freshness,
            runners=runners,
            make_lease=make_lease,
            background=controller_set.background,
            resync_s=resync_s,
        )
    )
