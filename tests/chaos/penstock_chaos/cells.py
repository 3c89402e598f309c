"""The cells: each injects a fault, proves that it occurred, and heals it. `run.py` plays them in a `world`.

A fault function returns when the fault is healed. Its other assertions are the cluster's guarantees during the fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.state import keys
from penstock_chaos import logins, rotation
from penstock_chaos.assertions import (
    DURING_LIMIT_S,
    LEASE_S,
    all_led_by_others,
    etcd_is_away,
    leads,
    nothing_taken,
    taken_during,
)
from penstock_chaos.broker import ClusterBroker
from penstock_chaos.cluster import BROKER_IDS, broker_name
from penstock_chaos.console import Truth
from penstock_chaos.history import SOURCE, WORKERS
from penstock_chaos.places import BOTH, Direction
from penstock_chaos.queues import QueueWorld
from penstock_chaos.schedules import ScheduleWorld
from penstock_chaos.world import World

SHORT_PAUSE_S = 2.0
LONG_PAUSE_S = LEASE_S + 6.0
CUT_S = 20.0
ETCD_AWAY_S = 30.0
NOTHING_FOR_S = 5.0
DOWN_S = 2.0
LOSS = 0.3
FULL_DISK = 3
FULL_S = 20.0


@dataclass(frozen=True)
class Cell:
    """A cell. `short`: part of the short set. The others describe its cluster, as for `World`."""

    name: str
    says: str
    fault: Callable[[World], None]
    short: bool = False
    with_network: bool = False
    small_disk: int | None = None
    is_secured: bool = False
    with_etcd_links: bool = False
    world: type[World] = World


# Kills


def kill_and_return(world: World, broker: ClusterBroker) -> None:
    before = world.cluster.console.truth()
    killed_s = time.monotonic()
    broker.kill()
    world.prove(f"broker {broker.broker_id} was killed (SIGKILL); it led {len(leads(before, broker.broker_id))} of 6")
    all_led_by_others(world, broker, before, killed_s)
    taken_during(world, range(len(world.acknowledged)), time.monotonic())
    broker.start()


def kill_leader(world: World) -> None:
    kill_and_return(world, world.leader())


def kill_controller(world: World) -> None:
    before = world.cluster.console.truth()
    assert before.controller is not None
    broker = world.controller()
    killed_s = time.monotonic()
    broker.kill()
    world.prove(f"the controller, broker {broker.broker_id}, was killed (SIGKILL)")
    epoch = before.controller.epoch

    def elected(truth: Truth) -> bool:
        now = truth.controller
        return now is not None and now.epoch > epoch and now.broker_id != broker.broker_id

    after = world.cluster.wait_truth("another controller", elected).controller
    assert after is not None
    world.prove(
        f"broker {after.broker_id} was controller in epoch {after.epoch} (before: {epoch})"
        f" {time.monotonic() - killed_s:.1f} s later"
    )
    if leads(before, broker.broker_id):
        all_led_by_others(world, broker, before, killed_s)
    taken_during(world, range(len(world.acknowledged)), time.monotonic())
    broker.start()


def kill_coordinator(world: World) -> None:
    """Kill the coordinator of the transactions and of the groups in their shard."""
    shard = keys.shard_of(WORKERS)
    before = world.cluster.console.truth().shards[shard]
    broker = world.cluster.brokers[before.broker_id]
    killed_s = time.monotonic()
    broker.kill()
    world.prove(f"broker {broker.broker_id}, the coordinator of {WORKERS}, was killed (SIGKILL)")

    def moved(truth: Truth) -> bool:
        return truth.shards[shard].broker_id != broker.broker_id and truth.shards[shard].epoch > before.epoch

    after = world.cluster.wait_truth("another coordinator", moved).shards[shard]
    world.prove(f"broker {after.broker_id} owns its shard in a higher epoch {time.monotonic() - killed_s:.1f} s later")
    world.wait_flowing("without the coordinator of before", DURING_LIMIT_S, 3)
    world.prove(f"all clients go on without it, within {time.monotonic() - killed_s:.1f} s")
    broker.start()


def kill_majority(world: World) -> None:
    survivor = world.rng.choice(BROKER_IDS)
    victims = [world.cluster.brokers[i] for i in BROKER_IDS if i != survivor]
    for broker in victims:
        broker.kill()
    dead_s = time.monotonic()
    world.prove(f"brokers {[b.broker_id for b in victims]} were killed (SIGKILL), broker {survivor} is alive")
    time.sleep(NOTHING_FOR_S)
    nothing_taken(world, range(len(world.acknowledged)), dead_s, time.monotonic(), "two replicas must be in sync")
    world.cluster.brokers[survivor].check_alive()
    world.cluster.start_brokers(b.broker_id for b in victims)


def kill_all(world: World) -> None:
    for broker in world.cluster.brokers.values():
        broker.kill()
    dead_s = time.monotonic()
    world.prove("all brokers were killed (SIGKILL)")
    time.sleep(DOWN_S)
    nothing_taken(world, range(len(world.acknowledged)), dead_s, time.monotonic(), "no broker runs")
    world.cluster.start_brokers(BROKER_IDS)


def kill_all_and_etcd(world: World) -> None:
    world.cluster.etcd.kill()
    for broker in world.cluster.brokers.values():
        broker.kill()
    dead_s = time.monotonic()
    world.prove("etcd and all brokers were killed (SIGKILL)")
    time.sleep(DOWN_S)
    nothing_taken(world, range(len(world.acknowledged)), dead_s, time.monotonic(), "no broker runs")
    world.cluster.etcd.start()
    world.cluster.start_brokers(BROKER_IDS)


# Pauses


def pause_short(world: World) -> None:
    broker = world.leader()
    before = world.cluster.console.truth()
    led = leads(before, broker.broker_id)
    broker.freeze()
    stopped_s = time.monotonic()
    time.sleep(SHORT_PAUSE_S)
    assert broker.state == "T", f"the process is in state {broker.state}"
    world.prove(f"broker {broker.broker_id} was stopped (SIGSTOP) for {time.monotonic() - stopped_s:.1f} s")
    nothing_taken(world, led, stopped_s, time.monotonic(), "the leader is paused and keeps its lease")
    after = world.cluster.console.truth()
    broker.thaw()
    if after.brokers.get(broker.broker_id) == before.brokers[broker.broker_id]:
        world.prove("its registration was kept")
    else:
        world.broken(f"broker {broker.broker_id} lost its registration in less than its lease")


def pause_long(world: World) -> None:
    broker = world.leader()
    before = world.cluster.console.truth()
    stopped_s = time.monotonic()
    broker.freeze()
    world.prove(f"broker {broker.broker_id} was stopped (SIGSTOP)")
    all_led_by_others(world, broker, before, stopped_s)
    taken_during(world, leads(before, broker.broker_id), time.monotonic())
    assert broker.state == "T", f"the process is in state {broker.state}"
    time.sleep(max(0.0, stopped_s + LONG_PAUSE_S - time.monotonic()))
    broker.thaw()
    world.prove(f"it continued (SIGCONT) after {time.monotonic() - stopped_s:.1f} s, longer than its lease")
    broker.check_alive()


# Links


def cut(world: World, name: str, others: list[str], directions: tuple[Direction, ...] = BOTH) -> None:
    assert world.cluster.network is not None
    world.cluster.network.drop(name, others, directions)


def mend(world: World, name: str, at_least: int = 10) -> None:
    assert world.cluster.network is not None
    dropped = world.cluster.network.mend(name)
    assert dropped >= at_least, f"only {dropped} packets met the cut: there was no fault"
    world.prove(f"{dropped} packets were dropped")


def peers_of(broker: ClusterBroker) -> list[str]:
    return [broker_name(i) for i in BROKER_IDS if i != broker.broker_id]


def cut_from_peers(world: World) -> None:
    """Cut the leader off from its followers: it keeps its lease and leadership, but cannot acknowledge acks=all."""
    broker = world.leader()
    name = broker_name(broker.broker_id)
    before = world.cluster.console.truth()
    cut(world, name, peers_of(broker))
    cut_s = time.monotonic()
    world.prove(f"broker {broker.broker_id} was cut off from its peers, but not from clients and etcd")
    time.sleep(CUT_S)
    after = world.cluster.console.truth()
    if broker.broker_id not in after.brokers:
        world.broken("a broker that reaches etcd lost its registration")
    still = {p for p in leads(before, broker.broker_id) if p in leads(after, broker.broker_id)}
    nothing_taken(world, still, cut_s, time.monotonic(), "its followers cannot reach it")
    mend(world, name)


def cut_from_etcd(world: World) -> None:
    broker = world.leader()
    name = broker_name(broker.broker_id)
    before = world.cluster.console.truth()
    cut(world, name, ["etcd"])
    cut_s = time.monotonic()
    world.prove(f"broker {broker.broker_id} was cut off from etcd, but not from clients and peers")
    all_led_by_others(world, broker, before, cut_s)
    taken_during(world, range(len(world.acknowledged)), time.monotonic())
    time.sleep(max(0.0, cut_s + CUT_S - time.monotonic()))
    broker.check_alive()
    mend(world, name)


def one_way(world: World) -> None:
    """Drop the packets from a broker's peers to it, but not those from it."""
    broker = world.leader()
    name = broker_name(broker.broker_id)
    cut(world, name, peers_of(broker), ("INPUT",))
    world.prove(f"broker {broker.broker_id} does not receive packets from its peers, which receive its packets")
    time.sleep(CUT_S)
    mend(world, name)


def lossy(world: World) -> None:
    """Drop a part of the packets to one broker, from all senders."""
    broker = world.leader()
    name = broker_name(broker.broker_id)
    assert world.cluster.network is not None
    world.cluster.network.drop(name, ["clients", "etcd", *peers_of(broker)], ("INPUT",), LOSS)
    world.prove(f"{LOSS:.0%} of the packets to broker {broker.broker_id} are dropped")
    time.sleep(CUT_S)
    mend(world, name)


# etcd


def without_etcd(world: World, since_s: float, all_go_on: bool) -> None:
    """Check that leaders whose followers all fetch continue for longer than their leases last."""
    time.sleep(LEASE_S + 3.0)
    if all_go_on:
        taken_during(world, range(len(world.acknowledged)), time.monotonic())
    time.sleep(max(0.0, since_s + ETCD_AWAY_S - time.monotonic()))
    for broker in world.cluster.brokers.values():
        broker.check_alive()
    world.prove(f"etcd was unavailable for {time.monotonic() - since_s:.0f} s")


def etcd_killed(world: World) -> None:
    world.cluster.etcd.kill()
    away_s = time.monotonic()
    etcd_is_away(world)
    world.prove("etcd was killed (SIGKILL)")
    without_etcd(world, away_s, all_go_on=True)
    world.cluster.etcd.start()


def etcd_stopped(world: World) -> None:
    """Stop etcd with SIGTERM: before it exits, it refuses connections for some seconds while leases expire."""
    begun_s = time.monotonic()
    world.cluster.etcd.stop()
    away_s = time.monotonic()
    etcd_is_away(world)
    world.prove(f"etcd was stopped (SIGTERM) and exited {away_s - begun_s:.1f} s later")
    without_etcd(world, away_s, all_go_on=False)
    world.cluster.etcd.start()


def etcd_frozen(world: World) -> None:
    """Freeze etcd for longer than the leases last: all expire at once when it resumes."""
    world.cluster.etcd.freeze()
    away_s = time.monotonic()
    world.prove("etcd was frozen (SIGSTOP)")
    without_etcd(world, away_s, all_go_on=True)
    world.cluster.etcd.thaw()


# Disk, and rolling restart


def disk_full(world: World) -> None:
    disk = world.cluster.disk
    assert disk is not None
    broker = world.cluster.brokers[FULL_DISK]
    world.cluster.wait_truth("the small disk's broker to lead", lambda truth: bool(leads(truth, FULL_DISK)))
    disk.fill()
    full_s = time.monotonic()
    assert disk.free_bytes() == 0, f"{disk.free_bytes()} bytes are free"
    world.prove(f"the disk of broker {FULL_DISK} was filled: 0 bytes free")
    time.sleep(FULL_S / 2)
    others = [p for p, record in world.cluster.console.truth().of(SOURCE).items() if record.leader != FULL_DISK]
    taken_during(world, others, time.monotonic())
    time.sleep(max(0.0, full_s + FULL_S - time.monotonic()))
    assert disk.free_bytes() == 0, f"{disk.free_bytes()} bytes are free"
    pid = broker.pid
    broker.check_alive()
    disk.give_back()
    world.cluster.wait_truth("all replicas in sync", lambda truth: truth.is_whole)
    broker.check_alive()
    assert broker.pid == pid
    world.prove("it accepted records again after space was freed, in the same process")


def rolling(world: World) -> None:
    for broker in world.cluster.brokers.values():
        before = world.cluster.wait_truth("all replicas in sync", lambda truth: truth.is_whole)
        incarnation = before.brokers[broker.broker_id].incarnation
        begun_s = time.monotonic()
        broker.stop()
        stopped_s = time.monotonic()
        taken_during(world, range(len(world.acknowledged)), stopped_s)
        broker.start()

        def back(truth: Truth, broker: ClusterBroker = broker, incarnation: object = incarnation) -> bool:
            record = truth.brokers.get(broker.broker_id)
            return record is not None and record.incarnation != incarnation and truth.is_whole

        world.cluster.wait_truth(f"broker {broker.broker_id} to be back in sync", back)
        world.prove(
            f"broker {broker.broker_id} stopped cleanly (SIGTERM, exit code 0) in {stopped_s - begun_s:.1f} s and"
            " returned as another incarnation"
        )


CELLS = (
    Cell("kill-leader", "kill -9 of a leader", kill_leader, short=True),
    Cell("kill-controller", "kill -9 of the controller", kill_controller),
    Cell("kill-coordinator", "kill -9 of the coordinator of transactions and groups", kill_coordinator, short=True),
    Cell("kill-majority", "kill -9 of two brokers of three", kill_majority),
    Cell("kill-all", "kill -9 of all brokers", kill_all, short=True),
    Cell("kill-all-and-etcd", "kill -9 of all brokers and of etcd", kill_all_and_etcd),
    Cell("pause-short", f"SIGSTOP of a leader for {SHORT_PAUSE_S:.0f} s", pause_short),
    Cell("pause-long", f"SIGSTOP of a leader for {LONG_PAUSE_S:.0f} s, longer than its lease", pause_long),
    Cell("cut-from-peers", "a leader cut off from its peers, but not from clients", cut_from_peers, with_network=True),
    Cell("cut-from-etcd", "a leader cut off from etcd, but not from its peers", cut_from_etcd, True, with_network=True),
    Cell("one-way", "a leader that receives nothing from its peers, but reaches them", one_way, with_network=True),
    Cell("lossy", f"{LOSS:.0%} of the packets to a leader are dropped", lossy, with_network=True),
    Cell("etcd-killed", f"kill -9 of etcd, which is down for {ETCD_AWAY_S:.0f} s", etcd_killed),
    Cell("etcd-stopped", f"etcd stopped for {ETCD_AWAY_S:.0f} s", etcd_stopped),
    Cell("etcd-frozen", f"etcd frozen for {ETCD_AWAY_S:.0f} s, so that all leases expire at once", etcd_frozen),
    Cell("disk-full", "the disk of one broker full", disk_full, small_disk=FULL_DISK),
    Cell("rolling", "SIGTERM and restart of each broker in turn", rolling, short=True),
    Cell("queue-kill-leader", "share group and delays: kill -9 of a leader", kill_leader, world=QueueWorld),
    Cell(
        "queue-kill-coordinator",
        "share group and delays: kill -9 of the coordinator of the share group",
        kill_coordinator,
        world=QueueWorld,
    ),
    Cell(
        "queue-pause",
        f"share group and delays: SIGSTOP of a leader for {LONG_PAUSE_S:.0f} s, longer than its lease",
        pause_long,
        world=QueueWorld,
    ),
    Cell(
        "queue-etcd-killed",
        f"share group and delays: kill -9 of etcd, which is down for {ETCD_AWAY_S:.0f} s",
        etcd_killed,
        world=QueueWorld,
    ),
    Cell(
        "schedule-kill-leader",
        "scheduled records: kill -9 of a leader",
        kill_leader,
        world=ScheduleWorld,
    ),
    Cell(
        "schedule-pause",
        f"scheduled records: SIGSTOP of a leader for {LONG_PAUSE_S:.0f} s, longer than its lease",
        pause_long,
        world=ScheduleWorld,
    ),
    Cell(
        "schedule-etcd-killed",
        f"scheduled records: kill -9 of etcd, which is down for {ETCD_AWAY_S:.0f} s",
        etcd_killed,
        world=ScheduleWorld,
    ),
    Cell("rotation", "certificates, CA, passwords, ACLs and token keys replaced", rotation.rotation, is_secured=True),
    Cell("rotation-once", "a certificate and a password replaced", rotation.once, is_secured=True),
    Cell("ca-while-down", "the CA replaced while a broker is down", rotation.while_down, is_secured=True),
    Cell(
        "logins-without-etcd",
        "etcd down for longer than the lease: logins and rights",
        logins.without_etcd,
        is_secured=True,
    ),
    Cell(
        "revoked-while-cut",
        "a right revoked while a broker is cut off from etcd",
        logins.revoked,
        is_secured=True,
        with_etcd_links=True,
    ),
)
