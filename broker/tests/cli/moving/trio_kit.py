"""Three broker processes and queries of them with an admin client."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from penstock.client import Admin, NewTopic, PartitionInfo, Producer, TopicPartition

T = TypeVar("T")


@dataclass
class Trio:
    """The processes of brokers 1, 2 and 3."""

    commands: dict[int, list[str]]
    directory: Path
    processes: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        return ",".join(self.addresses.values())

    def log(self, number: int) -> Path:
        return self.directory / f"{number}.log"

    def start(self, *numbers: int) -> None:
        """Start brokers; return once they are ready."""
        for number in numbers:
            with self.log(number).open("ab") as errors:
                self.processes[number] = subprocess.Popen(
                    self.commands[number], stdout=subprocess.PIPE, stderr=errors, text=True
                )
        for number in numbers:
            output = self.processes[number].stdout
            assert output is not None
            ready = output.readline().split()
            assert ready[:1] == ["ready"], self.log(number).read_text()
            self.addresses[number] = ready[1].removeprefix("kafka=")

    def restart(self, number: int) -> None:
        """Restart a broker with a controlled shutdown, so that its leaders move to other brokers."""
        self.processes[number].terminate()
        assert self.processes[number].wait(60) == 0
        self.start(number)

    def end(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def partition(self, topic: str, index: int) -> PartitionInfo:
        return self.do(lambda admin: admin.describe_topics([topic]))[topic].partitions[index]

    def do(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """Run `work` with an admin client."""

        async def run() -> T:
            async with Admin(self.bootstrap) as admin:
                return await work(admin)

        return asyncio.run(run())

    def replicas(self, topic: str) -> list[tuple[int, ...]]:
        """Return the replicas of each partition as one of the brokers knows them; it may lag behind the controller."""
        found = self.do(lambda admin: admin.describe_topics([topic]))[topic].partitions
        return [found[index].replicas for index in sorted(found)]

    def create(self, topic: str, *assignment: Sequence[int], batches: int = 2) -> None:
        """Create a topic with these replicas for each partition and `batches` batches in each partition."""

        async def run() -> None:
            async with Admin(self.bootstrap) as admin:
                await admin.create_topics([NewTopic(topic, assignment=dict(enumerate(assignment)))])
            async with Producer(self.bootstrap) as producer:
                for number in range(batches):
                    for index in range(len(assignment)):
                        await producer.send(topic, value=f"{number}".encode() * 100, partition=index)
                    await producer.flush()

        asyncio.run(run())

    def delete(self, topic: str) -> None:
        self.do(lambda admin: admin.delete_topics([topic]))

    def ends(self, topic: str, count: int) -> list[tuple[int, int]]:
        wanted = [TopicPartition(topic, index) for index in range(count)]
        found = self.do(lambda admin: admin.ends(wanted))
        return [found[tp] for tp in wanted]

    def own_settings(self, topic: str | None = None) -> dict[str, str | None]:
        """Return the dynamic settings of a topic, or of all brokers by `BROKER name`."""

        async def read(admin: Admin) -> dict[str, str | None]:
            if topic is not None:
                return {n: e.value for n, e in (await admin.topic_configs(topic)).items() if e.source == "topic"}
            return {
                f"{broker} {name}": entry.value
                for broker in (1, 2, 3)
                for name, entry in (await admin.broker_configs(broker)).items()
                if entry.source == "broker"
            }

        return self.do(read)

    def until(self, condition: Callable[[], Any], seconds: float = 60) -> None:
        async def wait() -> None:
            async with asyncio.timeout(seconds):
                while not await asyncio.to_thread(condition):
                    await asyncio.sleep(0.1)

        asyncio.run(wait())
