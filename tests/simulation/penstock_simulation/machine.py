"""A machine: clocks, a disk, an address, and processes. It can lose power.

Created by scenarios; used by `process`, `disk`, `clock` and `network`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock_simulation.clock import EPOCH_MS, SimClock
from penstock_simulation.disk import Disk

if TYPE_CHECKING:
    from penstock_simulation.network import Network
    from penstock_simulation.process import Process
    from penstock_simulation.world import World

MAX_DRIFT = 200e-6
MAX_SKEW_MS = 2_000


class Machine:
    """A machine. Its name is also its host name."""

    def __init__(self, world: World, network: Network, name: str) -> None:
        rng = world.streams[f"machine {name}"]
        self.world, self.network, self.name = world, network, name
        self.up = True
        self.boots = 0
        self.processes: list[Process] = []
        self.disk = Disk(world, name)
        self.rate = 1 + rng.uniform(-MAX_DRIFT, MAX_DRIFT)
        """Rate of its clocks relative to virtual time."""
        self.boot_offset_s = rng.uniform(10, 1e6)
        self.wall_offset_ms = EPOCH_MS + rng.randrange(-MAX_SKEW_MS, MAX_SKEW_MS + 1)
        self.clock = SimClock(self)
        network.machines[name] = self

    def local_s(self) -> float:
        """Seconds since boot."""
        return self.world.now * self.rate + self.boot_offset_s

    def leap(self, by_ms: int) -> None:
        """Set the wall clock forward or back."""
        self.world.note("leap", self.name, by_ms)
        self.wall_offset_ms += by_ms

    def lose_power(self) -> None:
        """Cut the power: all processes end without closing connections, and unsynced data is lost."""
        self.world.note("power off", self.name)
        self.up = False
        for process in list(self.processes):
            process.end(power_lost=True, kind="power")
        self.disk.lose_power()

    def boot(self) -> None:
        """Restore the power; the clock since boot restarts."""
        self.world.note("boot", self.name)
        self.up = True
        self.boots += 1
        self.boot_offset_s = 10.0 - self.world.now * self.rate
        self.network.retry_soon()
