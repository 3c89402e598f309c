"""The lease: one process leads, another takes over in time, and two never lead at once. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from doubles.kube import FakeKube
from doubles.virtual import LoopClock, run_virtually

from penstock_operator.engine.lease import DURATION_S, LeaderLease
from penstock_operator.ports.kube import LEASES, KubeError


class Replica:
    """One process: its lease, and the loop time at which it became leader."""

    def __init__(self, kube: Any, name: str) -> None:
        self.kube = kube
        self.changes: list[tuple[float, bool]] = []
        self.lease = LeaderLease(kube, LoopClock(), "ns", "penstock-operator", name, self._changed)
        self.task: asyncio.Task[None] | None = None

    def _changed(self, is_leader: bool) -> None:
        self.changes.append((asyncio.get_running_loop().time(), is_leader))

    def start(self) -> Replica:
        self.task = asyncio.create_task(self.lease.run())
        return self

    def kill(self) -> None:
        """Simulate kill -9: no more requests. The lease still expires."""
        assert self.task is not None
        self.task.cancel()

    @property
    def is_leader(self) -> bool:
        return self.lease.is_held()


class Unreachable:
    """An API server that one replica cannot reach while `is_away`; other requests pass."""

    def __init__(self, kube: FakeKube) -> None:
        self.kube, self.is_away, self.hangs = kube, False, False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.kube, name)

        async def called(*args: Any, **kwargs: Any) -> Any:
            if self.hangs:
                await asyncio.sleep(1_000)
            if self.is_away:
                raise KubeError(0, "NoAnswer", "connection refused")
            return await call(*args, **kwargs)

        return called


def virtually(test: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtually(test())

    run.__name__ = test.__name__
    return run


async def until(condition: Callable[[], bool], within_s: float) -> float:
    """Wait for the condition. Return the duration in seconds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < within_s, f"not within {within_s} s"
        await asyncio.sleep(0.1)
    return loop.time() - began


@virtually
async def test_of_two_that_start_together_one_leads() -> None:
    kube = FakeKube()
    replicas = [Replica(kube, name).start() for name in ("a", "b", "c")]
    for _ in range(600):
        await asyncio.sleep(0.1)
        assert sum(replica.is_leader for replica in replicas) <= 1
    assert sum(replica.is_leader for replica in replicas) == 1
    assert sum(len(replica.changes) for replica in replicas) == 1, "leadership does not wander"


@virtually
async def test_of_three_that_see_a_free_lease_at_the_same_moment_one_gets_it() -> None:
    kube = FakeKube()
    await kube.create(LEASES, "ns", {"metadata": {"name": "penstock-operator"}, "spec": {"holderIdentity": ""}})
    replicas = [Replica(kube, name).start() for name in ("a", "b", "c")]
    for _ in range(100):
        await asyncio.sleep(0.1)
        assert sum(replica.is_leader for replica in replicas) <= 1
    assert sum(len(replica.changes) for replica in replicas) == 1


@virtually
async def test_after_a_kill_the_other_leads_within_20_s() -> None:
    kube = FakeKube()
    a = Replica(kube, "a").start()
    await until(lambda: a.is_leader, 1)
    b = Replica(kube, "b").start()
    await asyncio.sleep(33.3)
    a.kill()
    assert await until(lambda: b.is_leader, 20) > 5
    assert kube.read(LEASES, "ns", "penstock-operator")["spec"]["leaseTransitions"] == 1


@virtually
async def test_one_that_stops_gives_the_lease_up_and_the_other_leads_at_once() -> None:
    kube = FakeKube()
    a = Replica(kube, "a").start()
    await until(lambda: a.is_leader, 1)
    b = Replica(kube, "b").start()
    await asyncio.sleep(30)
    a.kill()
    await a.lease.release()
    assert not a.is_leader
    assert a.changes[-1][1] is False
    await until(lambda: b.is_leader, 3)


@virtually
async def test_one_that_cannot_renew_stops_before_another_begins() -> None:
    for way in ("is_away", "hangs"):
        kube = FakeKube()
        path = Unreachable(kube)
        a, b = Replica(path, "a").start(), None
        await until(lambda a=a: a.is_leader, 1)
        b = Replica(kube, "b").start()
        await asyncio.sleep(23.4)
        setattr(path, way, True)
        both = 0
        for _ in range(250):
            await asyncio.sleep(0.1)
            both += a.is_leader and b.is_leader
        assert both == 0
        assert b.is_leader
        assert not a.is_leader
        ended, began = a.changes[-1][0], b.changes[-1][0]
        assert began - ended >= 2, "there is a margin between them"
        setattr(path, way, False)
        await asyncio.sleep(20)
        assert b.is_leader
        assert not a.is_leader
        a.kill()
        b.kill()


@virtually
async def test_a_short_outage_of_the_api_server_costs_nothing() -> None:
    kube = FakeKube()
    path = Unreachable(kube)
    a = Replica(path, "a").start()
    await until(lambda: a.is_leader, 1)
    for _ in range(10):
        await asyncio.sleep(20)
        path.is_away = True
        await asyncio.sleep(5.5)
        path.is_away = False
    assert a.is_leader
    assert len(a.changes) == 1


@virtually
async def test_clocks_of_different_machines_are_not_compared() -> None:
    kube = FakeKube()
    a = Replica(kube, "a")
    a.lease._clock = LoopClock()
    a.lease._clock.leap_ms = -3_600_000
    a.start()
    await until(lambda: a.is_leader, 1)
    b = Replica(kube, "b").start()
    await asyncio.sleep(60)
    assert a.is_leader
    assert not b.is_leader


@virtually
async def test_a_lease_that_somebody_deletes_or_takes_by_hand_is_not_held_by_two() -> None:
    kube = FakeKube()
    a, b = Replica(kube, "a").start(), Replica(kube, "b").start()
    await until(lambda: a.is_leader or b.is_leader, 3)
    kube.remove(LEASES, "ns", "penstock-operator")
    await asyncio.sleep(60)
    assert a.is_leader != b.is_leader
    await kube.patch(LEASES, "ns", "penstock-operator", {"spec": {"holderIdentity": "another"}})
    await until(lambda: not a.is_leader and not b.is_leader, DURATION_S)
    await until(lambda: a.is_leader or b.is_leader, 2 * DURATION_S)


@virtually
async def test_a_holder_without_a_name_is_refused() -> None:
    with pytest.raises(AssertionError):
        Replica(FakeKube(), "")
