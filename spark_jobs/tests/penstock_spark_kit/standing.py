"""Where a streaming query stands, seen from outside: what its checkpoint calls done, and what its group shows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.client import TopicPartition
from penstock_spark.link.link import Link
from penstock_spark.model.connection import ConnectionOptions
from penstock_spark.model.ranges import LATEST, READ_COMMITTED
from penstock_spark.progress.offsets import Offsets, StreamOffset
from penstock_spark_kit.drivers import DriverProcess
from penstock_spark_kit.topics import Rec, eventually, produce


def write_numbers(brokers: str, topic: str, partitions: int, numbers: range) -> None:
    """Each into the partition of its remainder, so that rows tell where they were read."""
    produce(brokers, topic, [Rec(b"%d" % n, partition=n % partitions) for n in numbers])


def by_partition(numbers: Iterable[int], partitions: int) -> Mapping[int, int]:
    """How many of each partition there are; doubles count once."""
    return Counter(n % partitions for n in set(numbers))


@dataclass(frozen=True)
class QueryProgress:
    """The progress of a query with one source, across restarts of its driver. Only this query commits to its group."""

    brokers: str
    topic: str
    partitions: int
    group: str
    checkpoint: Path

    @property
    def all(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in range(self.partitions)]

    @property
    def link(self) -> Link:
        return Link.to(ConnectionOptions(self.brokers))

    def done(self) -> Offsets:
        """Where the last batch that has ended ends; 0 where none has."""
        batches = [int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*") if path.name.isdecimal()]
        found: Offsets = {}
        if batches:
            text = (self.checkpoint / "offsets" / str(max(batches))).read_text()
            found = StreamOffset.from_json(json.loads(text.splitlines()[-1])).offsets
        return dict.fromkeys(self.all, 0) | dict(found)

    def shown(self) -> Offsets:
        """By the group; 0 where it has nothing."""
        found = self.link.committed(self.group, self.all)
        return {one: found[one][0] if one in found else 0 for one in self.all}

    def show(self, offsets: Offsets) -> None:
        """As if the driver had died before it told the group of what it did after that."""
        self.link.commit(self.group, offsets)

    def lag(self) -> int:
        shown = self.shown()
        ends = self.link.offsets(dict.fromkeys(self.all, LATEST), READ_COMMITTED)
        return sum(ends[one] - shown[one] for one in self.all)

    def check_not_ahead(self, rows: Mapping[int, int] | None = None) -> None:
        """`rows`: of the target by partition of the source, counted when the driver was dead. The group is asked before
        the checkpoint, so that a batch which ends meanwhile does no harm."""
        shown = self.shown()
        done = self.done()
        assert all(shown[one] <= done[one] for one in self.all), f"{self.group} shows {shown}, done is {done}"
        if rows is not None:
            there = {one: rows.get(one.partition, 0) for one in self.all}
            assert all(shown[one] <= there[one] for one in self.all), f"{self.group} shows {shown}, there is {there}"

    def comes_right(self, done: Offsets) -> None:
        """`done`: before the restart. To be called in a life that has come so far that the group must show it."""

        def is_right() -> bool:
            shown = self.shown()
            return all(shown[one] >= offset for one, offset in done.items())

        eventually(f"{self.group} shows what was done before the restart, {done}", is_right)

    def check_exact(self) -> None:
        """To be called when a driver has ended by itself."""
        shown, done = self.shown(), self.done()
        assert shown == done, f"{self.group} shows {shown}, done is {done}"


def come_right_with_nothing_new(
    standings: Collection[QueryProgress], start: Callable[[], DriverProcess], complain: Callable[[], str]
) -> None:
    """Everything is done, and the last commits are lost. `start` begins a life that finds nothing to do and looks again
    much later: nothing but its beginning can put the groups right."""
    for standing in standings:
        standing.show({one: offset // 2 for one, offset in standing.done().items()})
        assert standing.lag(), "nothing was lost"
    driver = start()
    try:
        for standing in standings:
            standing.comes_right(standing.done())
            assert driver.process.poll() is None, complain()
            standing.check_exact()
    finally:
        driver.kill()
