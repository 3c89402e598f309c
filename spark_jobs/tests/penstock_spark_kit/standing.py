"""Progress of a streaming query from outside: batches that its checkpoint has completed, and offsets of its group."""

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
    """Write each number to the partition of its remainder, so that rows show their source partition."""
    produce(brokers, topic, [Rec(b"%d" % n, partition=n % partitions) for n in numbers])


def by_partition(numbers: Iterable[int], partitions: int) -> Mapping[int, int]:
    """Return the number of values per partition; duplicates count once."""
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
        """Return the end offsets of the last completed batch; 0 without one."""
        batches = [int(path.name) for path in (self.checkpoint / "commits").glob("[0-9]*") if path.name.isdecimal()]
        found: Offsets = {}
        if batches:
            text = (self.checkpoint / "offsets" / str(max(batches))).read_text()
            found = StreamOffset.from_json(json.loads(text.splitlines()[-1])).offsets
        return dict.fromkeys(self.all, 0) | dict(found)

    def shown(self) -> Offsets:
        """Return the committed offsets of the group; 0 without one."""
        found = self.link.committed(self.group, self.all)
        return {one: found[one][0] if one in found else 0 for one in self.all}

    def show(self, offsets: Offsets) -> None:
        """Commit older offsets, as if the driver had died before it committed the later ones."""
        self.link.commit(self.group, offsets)

    def lag(self) -> int:
        shown = self.shown()
        ends = self.link.offsets(dict.fromkeys(self.all, LATEST), READ_COMMITTED)
        return sum(ends[one] - shown[one] for one in self.all)

    def check_not_ahead(self, rows: Mapping[int, int] | None = None) -> None:
        """Check that the group is not ahead of the checkpoint or of `rows`: the target's rows by source partition,
        counted while the driver was dead. The group is queried before the checkpoint, because a batch may end in
        between."""
        shown = self.shown()
        done = self.done()
        assert all(shown[one] <= done[one] for one in self.all), f"{self.group} shows {shown}, done is {done}"
        if rows is not None:
            there = {one: rows.get(one.partition, 0) for one in self.all}
            assert all(shown[one] <= there[one] for one in self.all), f"{self.group} shows {shown}, there is {there}"

    def comes_right(self, done: Offsets) -> None:
        """Wait until the group shows `done`, the progress before the restart. Call it when the driver has run far
        enough that the group must show it."""

        def is_right() -> bool:
            shown = self.shown()
            return all(shown[one] >= offset for one, offset in done.items())

        eventually(f"{self.group} shows what was done before the restart, {done}", is_right)

    def check_exact(self) -> None:
        """Check that group and checkpoint agree. Call it when a driver has ended without a kill."""
        shown, done = self.shown(), self.done()
        assert shown == done, f"{self.group} shows {shown}, done is {done}"


def come_right_with_nothing_new(
    standings: Collection[QueryProgress], start: Callable[[], DriverProcess], complain: Callable[[], str]
) -> None:
    """Check that groups recover when everything is complete and only the last commits are lost. `start` starts a driver
    that finds no new data and polls much later: only its startup can correct the groups."""
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
