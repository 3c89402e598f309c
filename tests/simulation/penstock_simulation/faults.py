"""What goes wrong in a simulated world, and when. Chosen by the seed; `scenario` has them happen.

Each kind is a method of `Faults` that begins one fault and sees to its end. A fault counts when it has begun.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock_simulation.store import STORE_HOST

if TYPE_CHECKING:
    from penstock_simulation.scenario import Scenario

WEIGHTS = {
    "kill": 4,
    "kill_in_disk": 4,
    "kill_in_loop": 3,
    "power_loss": 4,
    "kill_then_power_loss": 2,
    "pause": 2,
    "cut": 3,
    "disk_full": 2,
    "write_error": 1,
    "sync_error": 1,
    "sync_error_trusted": 1,
    "store_away": 2,
    "store_cut": 2,
    "clock_leap": 1,
    "restart": 2,
    "kill_client": 2,
    "pause_client": 2,
}
KNOWN = ("store_away_overtaken",)
"""Not among what happens by chance yet: the broker is known to fail them (`--only` has them happen)."""
MINOR = {"restart", "clock_leap"}
"""Happen, but are no faults that a seed may count."""


class Faults:
    """The faults of one world."""

    def __init__(self, scenario: Scenario, kinds: dict[str, int] | None = None) -> None:
        self.scenario, self.world = scenario, scenario.world
        self.rng: random.Random = scenario.world.streams["faults"]
        self.weights = kinds or WEIGHTS
        self.happened: Counter[str] = Counter()
        self.over = False

    @property
    def counted(self) -> int:
        return sum(number for kind, number in self.happened.items() if kind not in MINOR)

    def begin(self) -> None:
        self.world.after(self.rng.uniform(0.2, 2.0), self.next)

    def next(self) -> None:
        """One fault, and then another some time later."""
        if self.over:
            return
        kind = self.rng.choices(list(self.weights), list(self.weights.values()))[0]
        self.world.note("fault", kind)
        if getattr(self, kind)():
            self.happened[kind] += 1
        self.world.after(self.rng.choice([0.2, 2.0, 4.0]) + self.rng.expovariate(1 / 2.0), self.next)

    def later(self, low_s: float, high_s: float, action: Callable[..., object], *args: object) -> None:
        self.world.after(self.rng.uniform(low_s, high_s), action, *args)

    def stop(self) -> None:
        """No more of them, and everything is made good that is still amiss."""
        self.over = True
        scenario = self.scenario
        scenario.network.heal_all()
        if scenario.core.away:
            scenario.core.come_back()
        disk = scenario.broker_machine.disk
        disk.failing_syncs = disk.failing_writes = 0
        disk.empty()
        if not scenario.broker_machine.up:
            scenario.broker_machine.boot()
        for process in self.world.processes:
            process.resume()
        scenario.restart_if_failed()

    # Each returns whether it could begin.

    def kill(self) -> bool:
        broker = self.scenario.broker
        if broker is None or not broker.alive:
            return False
        broker.kill()
        return True

    def kill_in_disk(self) -> bool:
        """Dies in the middle of what it does to its files."""
        files = self.scenario.files
        if files is None or not files.process.alive:
            return False
        files.fuse = self.rng.choice([self.rng.randrange(10), self.rng.randrange(200)])
        return True

    def kill_in_loop(self) -> bool:
        """Dies between any two callbacks."""
        broker = self.scenario.broker
        if broker is None or not broker.alive:
            return False
        broker.fuse = self.rng.choice([self.rng.randrange(30), self.rng.randrange(2000)])
        return True

    def power_loss(self) -> bool:
        machine = self.scenario.broker_machine
        if not machine.up:
            return False
        machine.lose_power()
        self.later(0.2, 3.0, self.boot)
        return True

    def boot(self) -> None:
        if not self.scenario.broker_machine.up:
            self.scenario.broker_machine.boot()

    def kill_then_power_loss(self) -> bool:
        """What the page cache still had after the kill is gone soon after."""
        if not self.kill():
            return False
        self.later(0.0, 1.5, self.power_loss)
        return True

    def pause(self) -> bool:
        broker = self.scenario.broker
        if broker is None or not broker.alive or broker.paused:
            return False
        broker.pause()
        self.later(0.05, self.rng.choice([0.5, 8.0]), broker.resume)
        return True

    def cut(self) -> bool:
        """Between the broker and one client, or all; both ways or one."""
        clients = self.scenario.client_hosts
        chosen = clients if self.rng.random() < 0.3 else [self.rng.choice(clients)]
        there, back = self.rng.choice([(True, True), (True, False), (False, True)])
        broker, network = self.scenario.broker_machine.name, self.scenario.network
        links = [(client, broker) for client in chosen if there] + [(broker, client) for client in chosen if back]
        for link in links:
            network.cut(*link)
        self.later(0.1, self.rng.choice([1.0, 7.0]), self.heal, links)
        return True

    def heal(self, links: list[tuple[str, str]]) -> None:
        for link in links:
            self.scenario.network.heal(*link)

    def disk_full(self) -> bool:
        disk = self.scenario.broker_machine.disk
        disk.fill(self.rng.choice([0, self.rng.randrange(1000), self.rng.randrange(30_000)]))
        self.later(0.5, 5.0, disk.empty)
        return True

    def write_error(self) -> bool:
        """EIO on a write; somebody restarts what does not serve any more, after a while."""
        self.scenario.broker_machine.disk.failing_writes = self.rng.choice([1, 3])
        self.later(0.5, 3.0, self.replace)
        return True

    def sync_error(self) -> bool:
        """EIO on a sync: what is in the page cache may not be on disk, so the machine is restarted."""
        self.scenario.broker_machine.disk.failing_syncs = 1
        self.later(0.5, 3.0, self.power_loss)
        return True

    def sync_error_trusted(self) -> bool:
        """EIO on a sync, and whoever restarts the broker leaves the machine as it is."""
        self.scenario.trusts_tainted_cache = True
        self.scenario.broker_machine.disk.failing_syncs = 1
        self.later(0.5, 3.0, self.scenario.restart_if_failed)
        return True

    def replace(self) -> None:
        self.scenario.broker_machine.disk.failing_writes = 0
        self.scenario.restart_if_failed()

    def store_away(self) -> bool:
        core = self.scenario.core
        if core.away:
            return False
        core.go_away()
        self.later(0.2, self.rng.choice([2.0, 8.0]), self.store_back)
        return True

    def store_away_overtaken(self) -> bool:
        """From now on, what the store did not answer for may take effect behind what was asked for afterwards."""
        self.scenario.core.late_are_overtaken = True
        return self.store_away()

    def store_back(self) -> None:
        if self.scenario.core.away:
            self.scenario.core.come_back()

    def store_cut(self) -> bool:
        broker, network = self.scenario.broker_machine.name, self.scenario.network
        links = self.rng.choice([[(broker, STORE_HOST)], [(STORE_HOST, broker)]])
        for link in links:
            network.cut(*link)
        self.later(0.2, self.rng.choice([2.0, 8.0]), self.heal, links)
        return True

    def clock_leap(self) -> bool:
        self.scenario.broker_machine.leap(self.rng.choice([-1, 1]) * self.rng.randrange(10_000))
        return True

    def restart(self) -> bool:
        """In good order."""
        return self.scenario.stop_broker()

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
