"""The demo's scenario: produce, share partitions, kill a member, let others take over, verify."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.cli.common import CommandError
from penstock.cli.demo.flights import Totals, read_flights
from penstock.cli.demo.processes import ConsumerProcess
from penstock.cli.demo.tally import DeliveryTally, TallyCheck, check_tally
from penstock.cli.progress import ProgressDisplay
from penstock.client import Admin, NewTopic, Producer, TopicPartition

MEMBERS = ("one", "two", "three")
KILL_AT_SHARE = 0.4
"""Share of the member's own partitions that it has reported when it is killed."""
JOIN_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 180.0
FLIGHTS = 336_776


@dataclass(slots=True)
class DemoResult:
    """Results of the demo."""

    tally: DeliveryTally
    expected: Totals
    ends: list[int]
    killed: str = ""
    killed_pid: int = 0
    lost: dict[int, int] = field(default_factory=dict)
    reported: dict[int, int] = field(default_factory=dict)
    lag: int = -1
    produced_per_s: float = 0.0
    consumed_per_s: float = 0.0
    takeover_s: float = 0.0

    def checks(self) -> list[TallyCheck]:
        """Return all checks of the result."""
        return check_tally(self.tally, self.expected, self.ends, self.lost, self.reported, self.lag)


def report(what: str) -> None:
    """Print a line of progress."""
    print(what, flush=True)


class BrokerDemo:
    """Runs against the broker at `bootstrap`. Logs of the members go to `directory`."""

    def __init__(
        self, bootstrap: str, directory: Path, data: Path, topic: str, partitions: int, session_timeout_ms: int
    ) -> None:
        self.bootstrap, self.directory, self.data = bootstrap, directory, data
        self.topic, self.group, self.partition_count = topic, f"{topic}-readers", partitions
        self.session_timeout_ms = session_timeout_ms
        self.result = DemoResult(DeliveryTally(partitions), Totals(), [])
        self.members: dict[str, ConsumerProcess] = {}
        self._assigned: dict[str, list[int]] = {}
        self._committed: dict[str, dict[int, int]] = {}
        self._read: dict[str, dict[int, int]] = {}
        self._has_update = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> DemoResult:
        """Run the scenario. Raises `CommandError` if a member fails or a timeout expires."""
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Admin(self.bootstrap))
            await admin.create_topics([NewTopic(self.topic, self.partition_count)])
            await self.produce()
            ends = await admin.ends(self.all_partitions())
            self.result.ends = [ends[tp][1] for tp in self.all_partitions()]
            for name in MEMBERS:
                arguments = [self.bootstrap, self.topic, self.group, str(self.session_timeout_ms)]
                self.members[name] = await ConsumerProcess.start(name, arguments, self.on_document, self.directory)
                stack.push_async_callback(self.members[name].close)
            await self.wait_until_shared()
            report(f"{len(MEMBERS)} consumers of one group share the partitions")
            await self.read_and_kill(admin)
            for member in self.members.values():
                if member.is_running and await member.leave() != 0:
                    raise CommandError(f"consumer {member.name} failed:\n{self.member_log(member.name)}")
            self.result.lag = await self.lag(admin)
        return self.result

    async def remove(self) -> None:
        """Delete the topic and the group."""
        async with Admin(self.bootstrap) as admin:
            await admin.delete_groups([self.group])
            await admin.delete_topics([self.topic])

    def all_partitions(self) -> list[TopicPartition]:
        """Return the topic's partitions."""
        return [TopicPartition(self.topic, p) for p in range(self.partition_count)]

    async def produce(self) -> None:
        """Produce all flights and measure the rate."""
        started_s = self._loop.time()
        report(f"producing {FLIGHTS:,} flights to {self.partition_count} partitions")
        with ProgressDisplay("producing flights", total=FLIGHTS) as progress:
            async with Producer(self.bootstrap) as producer:
                for count, (flight, message) in enumerate(read_flights(self.data), 1):
                    self.result.expected.add(flight.carrier, flight.arr_delay)
                    await producer.send(self.topic, message, key=flight.carrier)
                    if not count & 0xFFF:
                        progress.show(count)
                await producer.flush()
        self.result.produced_per_s = count / (self._loop.time() - started_s)

    def on_document(self, name: str, document: dict[str, Any]) -> None:
        """Record a document from a member."""
        if "rows" in document:
            rows = [(carrier, delay) for carrier, delay in document["rows"]]
            self.result.tally.add(name, document["partition"], document["first"], rows)
            self._read.setdefault(name, {})[document["partition"]] = document["first"] + len(rows)
        elif "assigned" in document:
            self._assigned[name] = document["assigned"]
        elif "committed" in document:
            commits = self._committed.setdefault(name, {})
            commits.update({int(p): offset for p, offset in document["committed"].items()})
        self._has_update.set()

    async def wait_for_update(self, deadline: float, waiting_for: str) -> None:
        """Wait for a member's next document. Raises `CommandError` at the deadline or if a member exited."""
        for name, member in self.members.items():
            if not member.is_running and name != self.result.killed:
                raise CommandError(f"consumer {name} exited unexpectedly:\n{self.member_log(name)}")
        if self._loop.time() >= deadline:
            raise CommandError(f"timed out while waiting for {waiting_for}")
        try:
            async with asyncio.timeout_at(min(deadline, self._loop.time() + 0.5)):
                await self._has_update.wait()
        except TimeoutError:
            return
        self._has_update.clear()

    def uncommitted(self, name: str) -> int:
        """Return how many records a member reported after its commits. The kill should cause some repeats."""
        committed = self._committed.get(name, {})
        return sum(end - committed.get(p, 0) for p, end in self._read.get(name, {}).items())

    def member_log(self, name: str) -> str:
        """Return a member's log."""
        return (self.directory / f"member-{name}.log").read_text(errors="replace").strip()

    async def wait_until_shared(self) -> None:
        """Wait until the members share all partitions."""
        deadline = self._loop.time() + JOIN_TIMEOUT_S
        while not self.is_shared():
            await self.wait_for_update(deadline, "three members to share the partitions")

    def is_shared(self) -> bool:
        """Return whether every member has partitions, and all partitions are assigned once."""
        shares = [self._assigned.get(name, []) for name in MEMBERS]
        return all(shares) and sorted(p for share in shares for p in share) == list(range(self.partition_count))

    async def read_and_kill(self, admin: Admin) -> None:
        """Let all members read, kill the one with the most records midway, and wait until the rest is read."""
        result = self.result
        victim = max(MEMBERS, key=lambda name: sum(result.ends[p] for p in self._assigned[name]))
        share = sum(result.ends[p] for p in self._assigned[victim])
        started_s = self._loop.time()
        deadline = started_s + READ_TIMEOUT_S
        for member in self.members.values():
            member.go()
        with ProgressDisplay("consuming flights", total=sum(result.ends)) as progress:
            while result.tally.by_member.get(victim, 0) < KILL_AT_SHARE * share or not self.uncommitted(victim):
                await self.wait_for_update(deadline, "the consumers to get halfway")
                progress.show(result.tally.distinct)
        await self.kill(admin, victim)
        killed_at = self._loop.time()
        report(f"killed consumer {victim} (pid {result.killed_pid}); the others take over")
        with ProgressDisplay("consuming flights", total=sum(result.ends)) as progress:
            while not result.tally.is_complete(result.ends):
                await self.wait_for_update(deadline, "the other consumers to take over")
                progress.show(result.tally.distinct)
            finished = self._loop.time()
            while await self.lag(admin):
                await self.wait_for_update(deadline, "the last commits")
        result.takeover_s = finished - killed_at
        result.consumed_per_s = (result.tally.distinct + result.tally.repeats) / (finished - started_s)

    async def kill(self, admin: Admin, victim: str) -> None:
        """Kill a member and record the offsets it had committed."""
        result = self.result
        result.killed, result.killed_pid = victim, self.members[victim].process.pid
        await self.members[victim].kill()
        partitions = [TopicPartition(self.topic, p) for p in self._assigned[victim]]
        # No other member can commit for these partitions before the session times out.
        committed = await admin.committed(self.group, partitions)
        result.lost = {tp.partition: committed[tp].offset if tp in committed else 0 for tp in partitions}
        result.reported = dict(self._committed.get(victim, {}))

    async def lag(self, admin: Admin) -> int:
        """Return how many records the group has not committed."""
        committed = await admin.committed(self.group, self.all_partitions())
        at = [committed[tp].offset if tp in committed else 0 for tp in self.all_partitions()]
        return sum(self.result.ends) - sum(at)
