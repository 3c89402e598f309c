"""The faults of a simulated world, chosen by the seed and injected by scenarios.

Each kind is a method of `Faults` that starts one fault and ends it. A fault counts from its start. Faults that need a
cluster are in `cluster_faults`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock_simulation.store import STORE_HOST

if TYPE_CHECKING:
    from penstock_simulation.history import History
    from penstock_simulation.hosting import BrokerHost
    from penstock_simulation.network import Network
    from penstock_simulation.process import Process
    from penstock_simulation.store import StoreCore
    from penstock_simulation.world import World

WEIGHTS = {
    "kill": 4,
    "kill_in_disk": 4,
    "kill_in_loop": 3,
    "power_loss": 4,
    "kill_then_power_loss": 2,
    "pause": 2,
    "pause_in_loop": 1,
    "reset": 2,
    "cut": 3,
    "disk_slow": 2,
    "disk_full": 2,
    "write_error": 1,
    "sync_error": 1,
    "sync_error_trusted": 1,
    "store_away": 2,
    "store_away_overtaken": 1,
    "store_cut": 2,
    "clock_leap": 1,
    "restart": 2,
    "kill_client": 2,
    "pause_client": 2,
}
MINOR = {"restart", "clock_leap"}
"""Events that occur but do not count as faults."""


class Stage(Protocol):
    """The part of a scenario that faults use."""

    world: World
    network: Network
    core: StoreCore
    history: History
    hosts: list[BrokerHost]
    clients: list[Process]
    client_hosts: list[str]


class Faults:
    """The faults of one world. `weights` maps each kind that may occur to its relative frequency."""

    minor = MINOR

    def __init__(self, scenario: Stage, weights: dict[str, int]) -> None:
        self.scenario, self.world = scenario, scenario.world
        self.rng: random.Random = scenario.world.streams["faults"]
        self.weights = weights
        self.happened: Counter[str] = Counter()
        self.over = False
        self.pace = 1.0
        """Factor for the time between two faults."""

    @property
    def counted(self) -> int:
        return sum(number for kind, number in self.happened.items() if kind not in self.minor)

    def begin(self) -> None:
        self.world.after(self.rng.uniform(0.2, 2.0), self.next)

    def next(self) -> None:
        """Inject one fault and schedule the next."""
        if self.over:
            return
        kind = self.rng.choices(list(self.weights), list(self.weights.values()))[0]
        self.world.note("fault", kind)
        if getattr(self, kind)():
            self.happened[kind] += 1
        pause_s = self.rng.choice([0.2, 2.0, 4.0]) + self.rng.expovariate(1 / 2.0)
        self.world.after(pause_s * self.pace, self.next)

    def later(self, low_s: float, high_s: float, action: Callable[..., object], *args: object) -> None:
        self.world.after(self.rng.uniform(low_s, high_s), action, *args)

    def stop(self) -> None:
        """Stop injecting faults and heal those in progress."""
        self.over = True
        scenario = self.scenario
        scenario.network.heal_all()
        scenario.core.settle()
        for host in scenario.hosts:
            disk = host.machine.disk
            disk.failing_syncs = disk.failing_writes = 0
            disk.dragging_s = 0.0
            disk.empty()
            self.boot(host)
        for process in self.world.processes:
            process.resume()
        for host in scenario.hosts:
            host.restart_if_failed()

    def any_host(self) -> BrokerHost:
        hosts = self.scenario.hosts
        return hosts[0] if len(hosts) == 1 else self.rng.choice(hosts)

    # Each returns whether the fault could start.

    def kill(self) -> bool:
        return self.kill_of(self.any_host())

    def kill_of(self, host: BrokerHost) -> bool:
        if host.process is None or not host.process.alive:
            return False
        host.process.kill()
        return True

    def kill_in_disk(self) -> bool:
        """Kill a broker in the middle of a file operation."""
        outside = self.any_host().outside
        if outside is None or not outside.process.alive:
            return False
        outside.files.fuse = self.rng.choice([self.rng.randrange(10), self.rng.randrange(200)])
        return True

    def kill_in_loop(self) -> bool:
        """Kill a broker between any two callbacks."""
        process = self.any_host().process
        if process is None or not process.alive:
            return False
        process.on_fuse = process.kill
        process.fuse = self.rng.choice([self.rng.randrange(30), self.rng.randrange(2000)])
        return True

    def pause_in_loop(self) -> bool:
        """Pause a broker between any two callbacks, and resume it later."""
        process = self.any_host().process
        if process is None or not process.alive or process.paused:
            return False

        def pause() -> None:
            process.pause()
            self.later(0.05, self.rng.choice([0.5, 8.0]), process.resume)

        process.on_fuse = pause
        process.fuse = self.rng.choice([self.rng.randrange(30), self.rng.randrange(2000)])
        return True

    def power_loss(self) -> bool:
        return self.power_loss_of(self.any_host())

    def power_loss_of(self, host: BrokerHost) -> bool:
        if not host.machine.up:
            return False
        host.machine.lose_power()
        self.later(0.2, 3.0, self.boot, host)
        return True

    def boot(self, host: BrokerHost) -> None:
        if not host.machine.up:
            host.machine.boot()

    def kill_then_power_loss(self) -> bool:
        """Kill a broker, then cut the power, so that the unsynced part of the page cache is lost."""
        host = self.any_host()
        if not self.kill_of(host):
            return False
        self.later(0.0, 1.5, self.power_loss_of, host)
        return True

    def pause(self) -> bool:
        process = self.any_host().process
        if process is None or not process.alive or process.paused:
            return False
        process.pause()
        self.later(0.05, self.rng.choice([0.5, 8.0]), process.resume)
        return True

    def reset(self) -> bool:
        """Close some or all connections of a broker at once, at both ends."""
        return self.scenario.network.reset(self.any_host().name, self.rng.choice([0.3, 1.0])) > 0

    def cut(self) -> bool:
        """Cut the links between a broker and one client, or all, in both directions or one."""
        clients = self.scenario.client_hosts
        chosen = clients if self.rng.random() < 0.3 else [self.rng.choice(clients)]
        self.cut_off(self.any_host().name, chosen)
        return True

    def cut_off(self, broker: str, others: list[str]) -> None:
        """Cut the links in both directions or one."""
        there, back = self.rng.choice([(True, True), (True, False), (False, True)])
        network = self.scenario.network
        links = [(other, broker) for other in others if there] + [(broker, other) for other in others if back]
        for link in links:
            network.cut(*link)
        self.later(0.1, self.rng.choice([1.0, 7.0]), self.heal, links)

    def heal(self, links: list[tuple[str, str]]) -> None:
        for link in links:
            self.scenario.network.heal(*link)

    def disk_slow(self) -> bool:
        """Slow down syncs of one broker or all."""
        for host in self.rng.choice([[self.any_host()], self.scenario.hosts]):
            host.machine.disk.dragging_s = self.rng.choice([0.02, 0.2, 0.5])
            self.later(0.5, 5.0, setattr, host.machine.disk, "dragging_s", 0.0)
        return True

    def disk_full(self) -> bool:
        disk = self.any_host().machine.disk
        disk.fill(self.rng.choice([0, self.rng.randrange(1000), self.rng.randrange(30_000)]))
        self.later(0.5, 5.0, disk.empty)
        return True

    def write_error(self) -> bool:
        """Fail a write with EIO. A broker that has stopped serving is restarted after a while."""
        host = self.any_host()
        host.machine.disk.failing_writes = self.rng.choice([1, 3])
        self.later(0.5, 3.0, self.replace, host)
        return True

    def sync_error(self) -> bool:
        """Fail a sync with EIO. The page cache may differ from the disk, so the machine is restarted."""
        host = self.any_host()
        host.machine.disk.failing_syncs = 1
        self.later(0.5, 3.0, self.power_loss_of, host)
        return True

    def sync_error_trusted(self) -> bool:
        """Fail a sync with EIO. The broker is restarted, the machine is not."""
        host = self.any_host()
        host.trusts_tainted_cache = True
        host.machine.disk.failing_syncs = 1
        self.later(0.5, 3.0, host.restart_if_failed)
        return True

    def replace(self, host: BrokerHost) -> None:
        host.machine.disk.failing_writes = 0
        host.restart_if_failed()

    def store_away(self) -> bool:
        """Leave the store without a leader for a while."""
        core = self.scenario.core
        if core.away:
            return False
        core.go_away()
        self.later(0.2, self.rng.choice([2.0, 8.0]), self.store_back)
        return True

    def store_away_overtaken(self) -> bool:
        """As `store_away`; from now on, unanswered calls may be executed after later calls of the same client."""
        self.scenario.core.late_are_overtaken = True
        return self.store_away()

    def store_back(self) -> None:
        if self.scenario.core.away:
            self.scenario.core.come_back()

    def store_cut(self) -> bool:
        """Cut the link between a broker and the store in one direction."""
        broker, network = self.any_host().name, self.scenario.network
        links = self.rng.choice([[(broker, STORE_HOST)], [(STORE_HOST, broker)]])
        for link in links:
            network.cut(*link)
        self.later(0.2, self.rng.choice([2.0, 8.0]), self.heal, links)
        return True

    def clock_leap(self) -> bool:
        machine, leap_ms = self.any_host().machine, self.rng.choice([-1, 1]) * self.rng.randrange(10_000)
        machine.leap(leap_ms)
        self.scenario.history.allow_leap(abs(leap_ms) / 1000)
        return True

    def restart(self) -> bool:
        """Stop a broker with SIGTERM."""
        return self.any_host().stop()

    def kill_client(self) -> bool:
        alive = [process for process in self.scenario.clients if process.alive]
        if not alive:
            return False
        self.rng.choice(alive).kill()
        return True

    def pause_client(self) -> bool:
        alive = [process for process in self.scenario.clients if process.alive and not process.paused]
        if not alive:
            return False
        process = self.rng.choice(alive)
        process.pause()
        self.later(0.1, 12.0, process.resume)
        return True
