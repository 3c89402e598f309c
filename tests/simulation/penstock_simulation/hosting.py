"""A broker's machine, and its supervisor, which starts the broker and restarts it whenever it has exited.

Each start is a new process, named after its number. Created by `scenario` and `cluster`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.config.options import UpOptions
from penstock.node.settings import StartError
from penstock_simulation.machine import Machine
from penstock_simulation.node import SimNode, SimOutside

if TYPE_CHECKING:
    import random

    from penstock_simulation.network import Network
    from penstock_simulation.process import Process
    from penstock_simulation.store import StoreCore
    from penstock_simulation.world import World

DATA_DIR = "/data"
PORT = 9092
RETURN_S = 0.5
"""Time between two attempts to start a broker."""


class BrokerHost:
    """A machine with a broker. `node` and `files` belong to the current process, or to the last one."""

    def __init__(
        self,
        world: World,
        network: Network,
        core: StoreCore,
        rng: random.Random,
        name: str,
        settings: dict[str, str],
        *,
        is_clustered: bool = False,
        more_listeners: Mapping[str, int] | None = None,
    ) -> None:
        """`more_listeners` are ports by the names of listeners beside the usual one."""
        self.world, self.core, self.rng, self.name = world, core, rng, name
        self.settings, self.is_clustered = settings, is_clustered
        self.more_listeners = more_listeners or {}
        self.machine = Machine(world, network, name)
        self.process: Process | None = None
        self.node: SimNode | None = None
        self.outside: SimOutside | None = None
        self.starts = 0
        self.trusts_tainted_cache = False
        """Whether the broker is restarted after a failed sync without a restart of its machine."""
        self.is_wanted = True
        """Whether the broker is restarted after it has exited."""
        self.down_until_s = 0.0
        """Earliest time of the next start."""

    @property
    def broker_id(self) -> int:
        return int(self.settings.get("node.id", "0"))

    @property
    def address(self) -> str:
        return f"{self.name}:{PORT}"

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def serving(self) -> SimNode | None:
        """The node, if the current process owns it and it has started."""
        is_present = self.outside is not None and self.outside.process is self.process
        if not self.is_alive or not is_present or self.node is None or self.node.reason is not None:
            return None
        return self.node

    def start(self) -> None:
        """Start the broker as a supervisor does, unless it runs."""
        if self.world.stopped or not self.machine.up or self.is_alive or not self.is_wanted:
            return
        self.starts += 1
        self.process = self.world.spawn(f"{self.name}.{self.starts}", self.serve, self.machine)
        self.process.at_end.append(self.ended)

    def ended(self, power_lost: bool) -> None:
        if not self.world.stopped:
            self.world.after(self.rng.uniform(0.05, 1.0), self.start_when_up)

    def start_when_up(self) -> None:
        machine = self.machine
        if self.world.now < self.down_until_s:
            self.world.at(self.down_until_s, self.start_when_up)
            return
        if machine.up and machine.disk.tainted and not self.trusts_tainted_cache:
            machine.lose_power()
            machine.boot()
        if machine.up:
            self.start()
        elif not self.world.stopped:
            self.world.after(0.2, self.start_when_up)

    async def serve(self) -> None:
        """Run the broker's process as `penstock.node.process` does, without signals."""
        process = self.world.current
        assert process is not None
        outside = self.outside = SimOutside(process, self.core, self.is_clustered)
        ports = {"PLAINTEXT": PORT, **self.more_listeners}
        listeners = [f"{listener}://{self.name}:{port}" for listener, port in ports.items()]
        options = UpOptions(data_dir=DATA_DIR, listeners=listeners, http_port=None, settings=self.settings)
        node = self.node = SimNode(options, {}, outside)
        try:
            await node.start()
        except StartError:
            await asyncio.sleep(RETURN_S)
            return
        while True:
            await node.lost.wait()
            try:
                await node.stop()
            except OSError:  # its disk fails: the process exits with an error
                return
            while True:
                node = self.node = SimNode(options, {}, outside)
                try:
                    await node.start()
                    break
                except StartError:
                    await asyncio.sleep(RETURN_S)

    def stop(self) -> bool:
        """Send SIGTERM; return False if no process can be stopped."""
        process, node = self.process, self.serving
        if process is None or node is None:
            return False

        async def stop() -> None:
            with contextlib.suppress(OSError):  # if its disk fails, the process exits with another code
                await node.stop()
            process.end(power_lost=False, kind="stopped")

        process.post(process.loop.create_task, stop())
        return True

    def restart_if_failed(self) -> None:
        """Check readiness, and restart a broker whose log directory has failed."""
        node, outside = self.node, self.outside
        if not self.is_alive or node is None or outside is None or outside.process is not self.process:
            return
        assert self.process is not None
        log_dir = node.log_dir
        if log_dir is not None and log_dir.failed is not None:
            self.process.kill()
