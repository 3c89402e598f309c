"""One seed: brokers, clients, the injected faults, and the verdict.

`Scenario` is common to all worlds; `OneBroker` is the world of a single broker, `cluster` contains the other one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock_simulation import quiet, workload
from penstock_simulation.checker import check
from penstock_simulation.faults import WEIGHTS, Faults
from penstock_simulation.findings import Finding
from penstock_simulation.history import History
from penstock_simulation.hosting import BrokerHost
from penstock_simulation.machine import Machine
from penstock_simulation.network import Network
from penstock_simulation.observing import watching
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
READY_DEADLINE_S = 60.0


@dataclass
class Verdict:
    """The result of a seed."""

    seed: int
    findings: list[Finding]
    digest: str
    operations: int
    faults: Counter[str]
    counted_faults: int
    virtual_s: float
    cpu_s: float
    trace: list[str] | None = None
    starts: int = 0
    events: int = 0
    history: History = field(default_factory=History)

    @property
    def counts(self) -> bool:
        """Whether enough operations and faults occurred."""
        return self.operations >= LEAST_OPERATIONS and self.counted_faults >= LEAST_FAULTS


class Scenario:
    """The world of one seed. `prepare` is called before the world runs."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.world = World(seed, keep_trace=keep_trace)
        self.network = Network(self.world)
        self.core = StoreCore(self.world, self.network)
        self.history = History()
        self.hosts: list[BrokerHost] = []
        self.clients: list[Process] = []
        self.client_hosts: list[str] = []

    plan: workload.Plan
    faults: Faults
    is_watched = False
    """Whether to observe the brokers' internals: a single broker may keep its leader epoch over a restart."""

    # Clients

    def start_client(self, host: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a client of that name, which is restarted when it dies."""
        machine = self.network.machines.get(host)
        if machine is None:
            machine = Machine(self.world, self.network, host)
        if host not in self.client_hosts:
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
            plan.working.add(name)
            self.start_client(name, partial(workload.produce, plan, name, machine.clock, streams[name]))
        for number in range(MEMBERS):
            self.start_client(f"c{number}", partial(workload.consume, plan, f"c{number}", streams[f"c{number}"]))
        for number in range(READERS):
            self.start_client(f"r{number}", partial(workload.read_alone, plan, f"r{number}", streams[f"r{number}"]))
        self.start_client("auditor", partial(workload.audit_commits, plan, streams["auditor"]))

    # Course of the run

    def begin(self) -> None:
        """Start the brokers and the setup that clients need; `plan.ready` is set afterwards."""
        for host in self.hosts:
            host.start()
        self.world.spawn(
            "admin", partial(workload.create_topics, self.plan), Machine(self.world, self.network, "admin")
        )

    def run(self) -> list[Finding]:
        world, plan = self.world, self.plan
        self.begin()
        if not world.run(lambda: plan.ready, READY_DEADLINE_S):
            return [Finding("stuck", f"no topic can be created by {world.now:.0f} s: {plan.last_error}")]
        self.start_clients()
        self.faults.begin()
        finished = world.run(self.is_finished, SEND_DEADLINE_S)
        self.faults.stop()
        if not finished and not world.run(self.is_finished, world.now + END_DEADLINE_S):
            late = ", ".join(sorted(plan.working - plan.finished))
            return [Finding("stuck", f"{late} do not finish by {world.now:.0f} s"), *check(self.history)]
        world.run(lambda: False, world.now + world.streams["plan"].uniform(0.1, 3.0))
        machine = Machine(world, self.network, "last")
        reader = world.spawn("last", partial(workload.read_everything, plan), machine)
        if not world.run(lambda: not reader.alive, world.now + END_DEADLINE_S):
            stuck = Finding("stuck", f"not everything can be read by {world.now:.0f} s: {plan.last_error}")
            return [stuck, *check(self.history)]
        return [*self.look_inside(), *check(self.history)]

    def is_finished(self) -> bool:
        return self.plan.is_sent

    def look_inside(self) -> list[Finding]:
        """Return findings in the brokers' internal state at the end."""
        return []

    def verdict(self, seed: int, findings: list[Finding]) -> Verdict:
        world = self.world
        return Verdict(
            seed,
            findings,
            world.trace.digest(),
            self.history.acknowledged,
            self.faults.happened,
            self.faults.counted,
            world.now,
            0.0,
            world.trace.lines,
            sum(host.starts for host in self.hosts),
            world.trace.events,
            self.history,
        )


class OneBroker(Scenario):
    """The world of a single broker."""

    def __init__(self, seed: int, *, keep_trace: bool = False, kinds: dict[str, int] | None = None) -> None:
        super().__init__(seed, keep_trace=keep_trace)
        settings = {"group.initial.rebalance.delay.ms": "200"}
        self.faults = Faults(self, kinds or WEIGHTS)
        host = BrokerHost(self.world, self.network, self.core, self.faults.rng, BROKER, settings)
        self.hosts.append(host)
        rng = self.world.streams["plan"]
        self.plan = workload.Plan(
            self.world,
            self.history,
            host.address,
            partitions=rng.choice([1, 2, 4]),
            records=rng.randrange(380, 480),
            pause_s=rng.choice([0.12, 0.2, 0.3]),
            configs={"segment.bytes": str(rng.choice([1024, 4096, 1 << 20]))},
            enough=lambda: self.faults.counted >= LEAST_FAULTS,
        )


def run_scenario(
    seed: int,
    make: Callable[[], Scenario],
    *,
    verbose: bool = False,
    plant: Callable[[], Any] | None = None,
) -> Verdict:
    """Run one world to its end. `plant` returns a context manager that plants a bug for the duration of the run."""
    began = time.process_time()
    scenario = make()
    world = scenario.world
    with (
        in_place(world),
        quiet.logs(world, verbose=verbose),
        plant() if plant is not None else quiet.nothing(),
    ):
        try:
            with watching(world, scenario.history) if scenario.is_watched else quiet.nothing():
                findings = scenario.run()
        except (Livelock, Deadlock) as e:
            findings = [Finding("stuck", str(e))]
        findings += [Finding("unexpected", problem) for problem in world.problems]
        with quiet.burial():
            world.close()
            verdict = scenario.verdict(seed, findings)
            scenario.__dict__.clear()
            world.__dict__.clear()
    verdict.cpu_s = time.process_time() - began
    return verdict
