"""Assertions about a cluster during a fault, which the cells share. A violated guarantee is a finding of the world."""

from __future__ import annotations

import time
from collections.abc import Collection

from penstock_chaos.broker import ClusterBroker
from penstock_chaos.console import Refused, Truth
from penstock_chaos.history import SOURCE
from penstock_chaos.world import World

LEASE_S = 9.0
DURING_LIMIT_S = 60.0


def leads(truth: Truth, broker_id: int) -> dict[int, int]:
    """Return the leader epochs of the source partitions that a broker leads."""
    return {p: record.leader_epoch for p, record in truth.of(SOURCE).items() if record.leader == broker_id}


def all_led_by_others(world: World, broker: ClusterBroker, before: Truth, since_s: float) -> None:
    """Wait until the partitions that a broker led have other leaders in higher epochs."""
    led = leads(before, broker.broker_id)
    assert led, "the fault was to hit a leader"

    def moved(truth: Truth) -> bool:
        now = truth.of(SOURCE)
        return all(now[p].leader not in (-1, broker.broker_id) and now[p].leader_epoch > e for p, e in led.items())

    world.cluster.wait_truth(f"other leaders than {broker.broker_id}", moved)
    world.prove(
        f"the {len(led)} partitions that broker {broker.broker_id} led have other leaders in higher epochs"
        f" {time.monotonic() - since_s:.1f} s later"
    )


def taken_during(world: World, partitions: Collection[int], since_s: float) -> None:
    """Wait until the partitions accept records during the fault."""

    def waiting() -> list[int]:
        counts = world.acknowledged_between(since_s, time.monotonic())
        return [p for p in partitions if counts[p] == 0]

    if world.comes_true(lambda: not waiting(), DURING_LIMIT_S):
        world.prove(f"partitions {sorted(partitions)} acknowledge writes during the fault")
    else:
        world.broken(f"partitions {waiting()} acknowledged nothing for {DURING_LIMIT_S:.0f} s while it lasted")


def nothing_taken(world: World, partitions: Collection[int], begin_s: float, end_s: float, why: str) -> None:
    """Assert that no record sent while it could not be acknowledged was acknowledged; records sent before may be."""
    counts = world.acknowledged_between(begin_s, end_s)
    wrong = {p: counts[p] for p in partitions if counts[p]}
    if wrong:
        world.broken(f"acknowledged although {why}: {wrong} (records by partition)")
    else:
        world.prove(f"nothing sent for {end_s - begin_s:.1f} s was acknowledged, as {why}")


def etcd_is_away(world: World) -> None:
    try:
        world.cluster.console.truth()
    except Refused:
        return
    raise AssertionError("etcd answers: there was no fault")
