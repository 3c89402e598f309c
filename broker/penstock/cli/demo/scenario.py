"""The demo from beginning to end: produce, share, kill, take over, check."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.cli.common import CommandError
from penstock.cli.demo.flights import Totals, read_flights
from penstock.cli.demo.processes import ConsumerProcess
from penstock.cli.demo.tally import DeliveryTally, TallyCheck, verdict
from penstock.cli.progress import ProgressDisplay
from penstock.client import Admin, NewTopic, Producer, TopicPartition

MEMBERS = ("one", "two", "three")
KILL_AT_SHARE = 0.4
"""How much of its own partitions the member has reported when it is killed."""
JOIN_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 180.0
FLIGHTS = 336_776


@dataclass(slots=True)
class DemoResult:
    """What the demo found."""

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
        return verdict(self.tally, self.expected, self.ends, self.lost, self.reported, self.lag)


def say(what: str) -> None:
    print(what, flush=True)


class BrokerDemo:
    """Runs against the broker at `bootstrap`; logs of the members go to `directory`."""

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
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> DemoResult:
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Admin(self.bootstrap))
            await admin.create_topics([NewTopic(self.topic, self.partition_count)])
            await self.produce()
            ends = await admin.ends(self.all_partitions())
            self.result.ends = [ends[tp][1] for tp in self.all_partitions()]
            for name in MEMBERS:
                arguments = [self.bootstrap, self.topic, self.group, str(self.session_timeout_ms)]
                self.members[name] = await ConsumerProcess.start(name, arguments, self.heard, self.directory)
                stack.push_async_callback(self.members[name].close)
            await self.everybody_has_a_share()
            say(f"{len(MEMBERS)} consumers of one group share the partitions")
            await self.read_to_the_end(admin)
            for member in self.members.values():
                if member.running and await member.leave() != 0:
                    raise CommandError(f"consumer {member.name} failed:\n{self.log_of(member.name)}")
            self.result.lag = await self.lag(admin)
        return self.result

    async def remove(self) -> None:
        """Deletes topic and group from a broker that goes on."""
        async with Admin(self.bootstrap) as admin:
            await admin.delete_groups([self.group])
            await admin.delete_topics([self.topic])

    def all_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, p) for p in range(self.partition_count)]

    # Producing

    async def produce(self) -> None:
        began = self._loop.time()
        say(f"producing {FLIGHTS:,} flights to {self.partition_count} partitions")
        with ProgressDisplay("producing flights", total=FLIGHTS) as progress:
            async with Producer(self.bootstrap) as producer:
                for count, (flight, message) in enumerate(read_flights(self.data), 1):
                    self.result.expected.add(flight.carrier, flight.arr_delay)
                    await producer.send(self.topic, message, key=flight.carrier)
                    if not count & 0xFFF:
                        progress.show(count)
                await producer.flush()
        self.result.produced_per_s = count / (self._loop.time() - began)

    # Reading

    def heard(self, name: str, document: dict[str, Any]) -> None:
        """A line from a member."""
        if "rows" in document:
            rows = [(carrier, delay) for carrier, delay in document["rows"]]
            self.result.tally.add(name, document["partition"], document["first"], rows)
            self._read.setdefault(name, {})[document["partition"]] = document["first"] + len(rows)
        elif "assigned" in document:
            self._assigned[name] = document["assigned"]
        elif "committed" in document:
            commits = self._committed.setdefault(name, {})
            commits.update({int(p): offset for p, offset in document["committed"].items()})
        self._news.set()

    async def news(self, deadline: float, waiting_for: str) -> None:
        """Returns when a member said something. Raises `CommandError` when time is over or a member ended."""
        for name, member in self.members.items():
            if not member.running and name != self.result.killed:
                raise CommandError(f"consumer {name} ended by itself:\n{self.log_of(name)}")
        if self._loop.time() >= deadline:
            raise CommandError(f"gave up waiting for {waiting_for}")
        try:
            async with asyncio.timeout_at(min(deadline, self._loop.time() + 0.5)):
                await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()

    def uncommitted(self, name: str) -> int:
        """How many records a member has reported past its commits: the kill should leave something to repeat."""
        committed = self._committed.get(name, {})
        return sum(end - committed.get(p, 0) for p, end in self._read.get(name, {}).items())

    def log_of(self, name: str) -> str:
        return (self.directory / f"member-{name}.log").read_text(errors="replace").strip()

    async def everybody_has_a_share(self) -> None:
        deadline = self._loop.time() + JOIN_TIMEOUT_S
        while not self.shared():
            await self.news(deadline, "three members to share the partitions")

    def shared(self) -> bool:
        shares = [self._assigned.get(name, []) for name in MEMBERS]
        return all(shares) and sorted(p for share in shares for p in share) == list(range(self.partition_count))

    async def read_to_the_end(self, admin: Admin) -> None:
        """Lets everybody read, kills the one with the most to read midway, and waits until nothing is left."""
        result = self.result
        victim = max(MEMBERS, key=lambda name: sum(result.ends[p] for p in self._assigned[name]))
        share = sum(result.ends[p] for p in self._assigned[victim])
        began = self._loop.time()
        deadline = began + READ_TIMEOUT_S
        for member in self.members.values():
            member.go()
        with ProgressDisplay("consuming flights", total=sum(result.ends)) as progress:
            while result.tally.by_member.get(victim, 0) < KILL_AT_SHARE * share or not self.uncommitted(victim):
                await self.news(deadline, "the consumers to get halfway")
                progress.show(result.tally.distinct)
        await self.kill(admin, victim)
        killed_at = self._loop.time()
        say(f"killed consumer {victim} (pid {result.killed_pid}); the others take over")
        with ProgressDisplay("consuming flights", total=sum(result.ends)) as progress:
            while not result.tally.complete(result.ends):
                await self.news(deadline, "the other consumers to take over")
                progress.show(result.tally.distinct)
            finished = self._loop.time()
            while await self.lag(admin):
                await self.news(deadline, "the last commits")
        result.takeover_s = finished - killed_at
        result.consumed_per_s = (result.tally.distinct + result.tally.repeats) / (finished - began)

    async def kill(self, admin: Admin, victim: str) -> None:
        result = self.result
        result.killed, result.killed_pid = victim, self.members[victim].process.pid
        await self.members[victim].kill()
        partitions = [TopicPartition(self.topic, p) for p in self._assigned[victim]]
        # Nobody else may commit for these until the member's session has timed out.
        committed = await admin.committed(self.group, partitions)
        result.lost = {tp.partition: committed[tp].offset if tp in committed else 0 for tp in partitions}
        result.reported = dict(self._committed.get(victim, {}))

    async def lag(self, admin: Admin) -> int:
        """Records that the group has not committed."""
        committed = await admin.committed(self.group, self.all_partitions())
        at = [committed[tp].offset if tp in committed else 0 for tp in self.all_partitions()]
        return sum(self.result.ends) - sum(at)
