"""One seed: a broker, its clients, the faults that befall them, and the verdict.

`run_seed` is what the runner and the tests call.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.node import StartError
from penstock_simulation import quiet, workload
from penstock_simulation.checker import Finding, check
from penstock_simulation.faults import Faults
from penstock_simulation.files import SimFiles
from penstock_simulation.history import History
from penstock_simulation.machine import Machine
from penstock_simulation.network import Network
from penstock_simulation.node import PORT, SimNode
from penstock_simulation.process import Process
from penstock_simulation.seams import in_place
from penstock_simulation.store import StoreCore
from penstock_simulation.world import Deadlock, Livelock, World

BROKER = "b0"
PRODUCERS, MEMBERS, READERS = 3, 2, 1
LEAST_OPERATIONS = 1000
LEAST_FAULTS = 3
SEND_DEADLINE_S = 600.0
END_DEADLINE_S = 120.0


@dataclass
class Verdict:
    """What came of a seed."""

    seed: int
    findings: list[Finding]
    digest: str
    operations: int
    faults: Counter[str]
    counted_faults: int
    virtual_s: float
    real_s: float
    trace: list[str] | None = None
    starts: int = 0
    events: int = 0
    history: History = field(default_factory=History)

    @property
    def counts(self) -> bool:
        """Whether enough happened."""
        return self.operations >= LEAST_OPERATIONS and self.counted_faults >= LEAST_FAULTS


class Scenario:
    """The world of one seed."""

    def __init__(self, seed: int, *, keep_trace: bool = False, kinds: dict[str, int] | None = None) -> None:
        self.world = World(seed, keep_trace=keep_trace)
        self.network = Network(self.world)
        self.core = StoreCore(self.world, self.network)
        self.broker_machine = Machine(self.world, self.network, BROKER)
        self.history = History()
        rng = self.world.streams["plan"]
        self.plan = workload.Plan(
            self.world,
            self.history,
            f"{BROKER}:{PORT}",
            partitions=rng.choice([1, 2, 4]),
            records=rng.randrange(380, 480),
            pause_s=rng.choice([0.12, 0.2, 0.3]),
            segment_bytes=rng.choice([1024, 4096, 1 << 20]),
        )
        self.clients: list[Process] = []
        self.client_hosts: list[str] = []
        self.broker: Process | None = None
        self.node: SimNode | None = None
        self.files: SimFiles | None = None
        self.starts = 0
        self.trusts_tainted_cache = False
        """Whether the broker is started again after a failed sync without a restart of its machine."""
        self.faults = Faults(self, kinds)
        self.plan.enough = lambda: self.faults.counted >= LEAST_FAULTS

    # The broker and those who keep it running

    def start_broker(self) -> None:
        """As a supervisor does, whenever it is not there."""
        if self.world.stopped or not self.broker_machine.up or (self.broker is not None and self.broker.alive):
            return
        self.starts += 1
        self.broker = self.world.spawn(f"{BROKER}.{self.starts}", self.serve, self.broker_machine)
        self.broker.at_end.append(self.broker_ended)

    def broker_ended(self, power_lost: bool) -> None:
        if not self.world.stopped:
            self.world.after(self.faults.rng.uniform(0.05, 1.0), self.start_broker_when_up)

    def start_broker_when_up(self) -> None:
        machine = self.broker_machine
        if machine.up and machine.disk.tainted and not self.trusts_tainted_cache:
            machine.lose_power()
            machine.boot()
        if machine.up:
            self.start_broker()
        elif not self.world.stopped:
            self.world.after(0.2, self.start_broker_when_up)

    async def serve(self) -> None:
        """The broker's process."""
        process = self.world.current
        assert process is not None
        node = self.node = SimNode(process, self.core, {"group.initial.rebalance.delay.ms": "200"})
        self.files = node.files
        try:
            await node.start()
        except StartError:
            await asyncio.sleep(0.5)
            return
        await asyncio.get_running_loop().create_future()

    def stop_broker(self) -> bool:
        """SIGTERM."""
        broker, node = self.broker, self.node
        if broker is None or node is None or not broker.alive or node.process is not broker or node.reason is not None:
            return False

        async def stop() -> None:
            with contextlib.suppress(OSError):  # where its disk fails it ends all the same, with another exit code
                await node.stop()
            broker.end(power_lost=False, kind="stopped")

        broker.post(broker.loop.create_task, stop())
        return True

    def restart_if_failed(self) -> None:
        """Somebody looks at readiness, and restarts a broker whose directory has failed."""
        broker, node = self.broker, self.node
        if broker is None or not broker.alive or node is None or node.process is not broker:
            return
        log_dir = node.log_dir
        if log_dir is not None and log_dir.failed is not None:
            broker.kill()

    # Clients

    def start_client(self, host: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A client of that name, which is started again when it dies."""
        machine = self.network.machines.get(host)
        if machine is None:
            machine = Machine(self.world, self.network, host)
            self.client_hosts.append(host)
        process = self.world.spawn(host, main, machine)
        self.clients.append(process)

        def ended(power_lost: bool) -> None:
            self.clients.remove(process)
            if not self.world.stopped and host not in self.plan.finished:
                self.world.after(0.5, self.start_client, host, main)

        process.at_end.append(ended)

    def start_clients(self) -> None:
        plan, streams = self.plan, self.world.streams
        for number in range(PRODUCERS):
            name = f"p{number}"
            machine = Machine(self.world, self.network, name)
            self.client_hosts.append(name)
            self.start_client(name, partial(workload.produce, plan, name, machine.clock, streams[name]))
        for number in range(MEMBERS):
            self.start_client(f"c{number}", partial(workload.consume, plan, f"c{number}", streams[f"c{number}"]))
        for number in range(READERS):
            self.start_client(f"r{number}", partial(workload.read_alone, plan, f"r{number}", streams[f"r{number}"]))
        self.start_client("auditor", partial(workload.audit_commits, plan, streams["auditor"]))

    # The course of things

    def run(self) -> list[Finding]:
        world, plan = self.world, self.plan
        self.start_broker()
        world.spawn("admin", partial(workload.create_topic, plan), Machine(world, self.network, "admin"))
        world.run(lambda: plan.ready, 60)
        self.start_clients()
        self.faults.begin()
        finished = world.run(lambda: len(plan.finished) == PRODUCERS, SEND_DEADLINE_S)
        self.faults.stop()
        if not finished:
            finished = world.run(lambda: len(plan.finished) == PRODUCERS, world.now + END_DEADLINE_S)
        if not finished:
            return [Finding("stuck", f"producers do not finish by {world.now:.0f} s"), *check(self.history)]
        world.run(lambda: False, world.now + world.streams["plan"].uniform(0.1, 3.0))
        reader = world.spawn("last", partial(workload.read_everything, plan), Machine(world, self.network, "last"))
        if not world.run(lambda: not reader.alive, world.now + END_DEADLINE_S):
            return [
                Finding("stuck", f"not everything can be read by {world.now:.0f} s: {plan.last_error}"),
                *check(self.history),
            ]
        return check(self.history)


def run_seed(
    seed: int,
    *,
    keep_trace: bool = False,
    kinds: dict[str, int] | None = None,
    verbose: bool = False,
    plant: Callable[[], Any] | None = None,
) -> Verdict:
    """Runs one seed to its end. `plant` returns a context manager that plants a bug for as long as it runs."""
    began = time.perf_counter()
    scenario = Scenario(seed, keep_trace=keep_trace, kinds=kinds)
    world = scenario.world
    with in_place(world), quiet.logs(world, verbose=verbose), plant() if plant is not None else quiet.nothing():
        try:
            findings = scenario.run()
        except (Livelock, Deadlock) as e:
            findings = [Finding("stuck", str(e))]
        findings += [Finding("unexpected", problem) for problem in world.problems]
        with quiet.burial():
            world.close()
            verdict = Verdict(
                seed,
                findings,
                world.trace.digest(),
                scenario.history.acknowledged,
                scenario.faults.happened,
                scenario.faults.counted,
                world.now,
                0.0,
                world.trace.lines,
                scenario.starts,
                world.trace.events,
                scenario.history,
            )
            scenario.__dict__.clear()
            world.__dict__.clear()
    verdict.real_s = time.perf_counter() - began
    return verdict
