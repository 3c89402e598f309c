"""The clocks of simulated processes: `runtime.clock.Clock` on virtual time, with skew, drift and jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock_simulation.machine import Machine

EPOCH_MS = 1_800_000_000_000
"""Wall clock time at the start of virtual time, before skew."""


class SimClock:
    """Implementation of `Clock` for a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def wall_ms(self) -> int:
        machine = self.machine
        return int(machine.world.now * machine.rate * 1000) + machine.wall_offset_ms

    def boot_ms(self) -> int:
        return int(self.machine.local_s() * 1000)
