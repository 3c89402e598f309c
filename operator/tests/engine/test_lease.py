"""The lease: one acts, another takes over in time, nobody acts when another may. In virtual time."""

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
    """One process: its lease, and since when it has been leading, by the loop's time."""

    def __init__(self, kube: Any, name: str) -> None:
        self.kube = kube
        self.changes: list[tuple[float, bool]] = []
        self.lease = LeaderLease(kube, LoopClock(), "ns", "penstock-operator", name, self._changed)
        self.task: asyncio.Task[None] | None = None

    def _changed(self, leads: bool) -> None:
        self.changes.append((asyncio.get_running_loop().time(), leads))

    def start(self) -> Replica:
        self.task = asyncio.create_task(self.lease.run())
        return self

    def kill(self) -> None:
        """kill -9: it says nothing any more. Its deadline counts all the same, as it did before."""
        assert self.task is not None
        self.task.cancel()

    @property
    def leads(self) -> bool:
        return self.lease.is_held()


class Unreachable:
    """An API server that one replica cannot reach while `is_away`; everything else is passed on."""

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
    """How long it took."""
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
        assert sum(replica.leads for replica in replicas) <= 1
    assert sum(replica.leads for replica in replicas) == 1
    assert sum(len(replica.changes) for replica in replicas) == 1, "leadership does not wander"


@virtually
async def test_of_three_that_see_a_free_lease_at_the_same_moment_one_gets_it() -> None:
    kube = FakeKube()
    await kube.create(LEASES, "ns", {"metadata": {"name": "penstock-operator"}, "spec": {"holderIdentity": ""}})
    replicas = [Replica(kube, name).start() for name in ("a", "b", "c")]
    for _ in range(100):
        await asyncio.sleep(0.1)
        assert sum(replica.leads for replica in replicas) <= 1
    assert sum(len(replica.changes) for replica in replicas) == 1


@virtually
async def test_after_a_kill_the_other_leads_within_20_s() -> None:
    kube = FakeKube()
    a = Replica(kube, "a").start()
    await until(lambda: a.leads, 1)
    b = Replica(kube, "b").start()
    await asyncio.sleep(33.3)
    a.kill()
    assert await until(lambda: b.leads, 20) > 5
    assert kube.read(LEASES, "ns", "penstock-operator")["spec"]["leaseTransitions"] == 1


@virtually
async def test_one_that_stops_gives_the_lease_up_and_the_other_leads_at_once() -> None:
    kube = FakeKube()
    a = Replica(kube, "a").start()
    await until(lambda: a.leads, 1)
    b = Replica(kube, "b").start()
    await asyncio.sleep(30)
    a.kill()
    await a.lease.release()
    assert not a.leads
    assert a.changes[-1][1] is False
    await until(lambda: b.leads, 3)


@virtually
async def test_one_that_cannot_renew_stops_before_another_begins() -> None:
    for way in ("is_away", "hangs"):
        kube = FakeKube()
        path = Unreachable(kube)
        a, b = Replica(path, "a").start(), None
        await until(lambda a=a: a.leads, 1)
        b = Replica(kube, "b").start()
        await asyncio.sleep(23.4)
        setattr(path, way, True)
        both = 0
        for _ in range(250):
            await asyncio.sleep(0.1)
            both += a.leads and b.leads
        assert both == 0
        assert b.leads
        assert not a.leads
        ended, began = a.changes[-1][0], b.changes[-1][0]
        assert began - ended >= 2, "there is a margin between them"
        setattr(path, way, False)
        await asyncio.sleep(20)
        assert b.leads
        assert not a.leads
        a.kill()
        b.kill()


@virtually
async def test_a_short_outage_of_the_api_server_costs_nothing() -> None:
    kube = FakeKube()
    path = Unreachable(kube)
    a = Replica(path, "a").start()
    await until(lambda: a.leads, 1)
    for _ in range(10):
        await asyncio.sleep(20)
        path.is_away = True
        await asyncio.sleep(5.5)
        path.is_away = False
    assert a.leads
    assert len(a.changes) == 1


@virtually
async def test_clocks_of_different_machines_are_not_compared() -> None:
    kube = FakeKube()
    a = Replica(kube, "a")
    a.lease._clock = LoopClock()
    a.lease._clock.leap_ms = -3_600_000
    a.start()
    await until(lambda: a.leads, 1)
    b = Replica(kube, "b").start()
    await asyncio.sleep(60)
    assert a.leads
    assert not b.leads


@virtually
async def test_a_lease_that_somebody_deletes_or_takes_by_hand_is_not_held_by_two() -> None:
    kube = FakeKube()
    a, b = Replica(kube, "a").start(), Replica(kube, "b").start()
    await until(lambda: a.leads or b.leads, 3)
    kube.remove(LEASES, "ns", "penstock-operator")
    await asyncio.sleep(60)
    assert a.leads != b.leads
    await kube.patch(LEASES, "ns", "penstock-operator", {"spec": {"holderIdentity": "somebody"}})
    await until(lambda: not a.leads and not b.leads, DURATION_S)
    await until(lambda: a.leads or b.leads, 2 * DURATION_S)


@virtually
async def test_a_holder_without_a_name_is_refused() -> None:
    with pytest.raises(AssertionError):
        Replica(FakeKube(), "")
