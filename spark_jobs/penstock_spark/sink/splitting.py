"""Arrow batches of rows into runs of rows for one partition each, vectorised: what `task` encodes.

The partition of a row is what its column `partition` says; else murmur2 of its key; rows with neither go where the
task's turn is, a batch's worth at a time, so that batches are full and partitions evenly filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from penstock_spark.encode.ports import BatchEdges, EncodableRows, PartitionChooser
from penstock_spark.model.errors import PenstockSparkError
from penstock_spark.sink.columns import Columns, in_order, part_of, rows_of
from penstock_spark.sink.messages import Partition

GATHER_BYTES = 8 << 20
"""At most so much is gathered before it is split, so that each of many partitions gets batches of some size."""
UNNAMED = -(1 << 63)


class BadRow(PenstockSparkError):
    """A row names no topic, or a partition that its topic does not have."""


class Splitter:
    """`partitions_of` gives a topic's number of partitions, of which rows name at most the second argument (-1: none);
    `turn` is where this task begins with rows without a key, so that tasks side by side begin at different
    partitions."""

    def __init__(
        self,
        columns: Columns,
        topic: str | None,
        batch_bytes: int,
        partitions: PartitionChooser,
        batch_edges: BatchEdges,
        partitions_of: Callable[[str, int], int],
        turn: int,
    ) -> None:
        self.columns, self.topic, self.batch_bytes = columns, topic, batch_bytes
        self._partitions, self._batch_edges, self._partitions_of = partitions, batch_edges, partitions_of
        self._turn = turn

    def split(
        self, batches: Iterator[pa.RecordBatch], now_ms: Callable[[], int]
    ) -> Iterator[tuple[Partition, EncodableRows]]:
        """The rows of a partition come in their order."""
        for batch in self.gathered(batches):
            rows = rows_of(batch, self.columns, now_ms())
            yield from self.by_partition(batch, rows)

    def gathered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches put together to a size that is worth splitting."""
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            held.append(batch)
            held_bytes += batch.nbytes
            if held_bytes >= self._worth_splitting:
                yield joined(held)
                held, held_bytes = [], 0
        if held:
            yield joined(held)

    @property
    def _worth_splitting(self) -> int:
        if not self.columns.key and not self.columns.partition and self.topic is not None:
            return self.batch_bytes
        ways = 1 if self.topic is None else self._partitions_of(self.topic, -1)
        return min(GATHER_BYTES, max(1, ways) * self.batch_bytes)

    def by_partition(self, batch: pa.RecordBatch, rows: EncodableRows) -> Iterator[tuple[Partition, EncodableRows]]:
        topics, codes = self.topics_of(batch)
        named = named_of(batch) if self.columns.partition else None
        if len(topics) == 1 and rows.key.null_count == len(rows.key) and named is None:
            yield from self._in_turn(topics[0], rows)
            return
        chosen: list[slice | np.ndarray] = [slice(None)]
        if len(topics) > 1:
            chosen = [np.flatnonzero(codes == code) for code in range(len(topics))]
        highest = [-1 if named is None else int(named[part].max()) for part in chosen]
        counts = np.array(list(map(self._partitions_of, topics, highest)), dtype=np.int64)
        firsts = np.concatenate(([0], np.cumsum(counts)))
        places = np.empty(len(rows.key), dtype=np.int64)
        for code, (topic, part, count) in enumerate(zip(topics, chosen, counts.tolist(), strict=True)):
            keys = rows.key if isinstance(part, slice) else rows.key.take(pa.array(part))
            numbers = self._partitions(keys, count).astype(np.int64)
            if named is not None:
                obey(named[part], numbers, topic, count)
            self._fill_in_turn(numbers, count, rows)
            places[part] = numbers + firsts[code]
        yield from self._runs(topics, firsts, places, rows)

    def topics_of(self, batch: pa.RecordBatch) -> tuple[list[str], np.ndarray]:
        """The topics of a batch, and the number of each row's among them."""
        if self.topic is not None:
            return [self.topic], np.zeros(0, dtype=np.int64)
        column = batch.column("topic")
        if column.null_count:
            raise BadRow("a row has no topic (its column 'topic' is null): set option 'topic', or filter such rows")
        encoded = column.dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)

    def _fill_in_turn(self, numbers: np.ndarray, count: int, rows: EncodableRows) -> None:
        """Rows with neither partition nor key."""
        left = np.flatnonzero(numbers < 0)
        if len(left):
            turns = np.arange(len(left)) // self._rows_of_a_batch(rows)
            numbers[left] = (self._turn + turns) % count
            self._turn += int(turns[-1]) + 1

    def _in_turn(self, topic: str, rows: EncodableRows) -> Iterator[tuple[Partition, EncodableRows]]:
        """As above, where that is all of them: nothing has to be moved."""
        count, edges = self._partitions_of(topic, -1), self._batch_edges(rows, self.batch_bytes)
        for start, end in pairwise(edges):
            yield (topic, self._turn % count), part_of(rows, start, end - start)
            self._turn += 1

    def _rows_of_a_batch(self, rows: EncodableRows) -> int:
        size_bytes = rows.value.nbytes + rows.key.nbytes
        return max(1, self.batch_bytes * len(rows.value) // max(1, int(size_bytes)))

    def _runs(
        self, topics: list[str], firsts: np.ndarray, places: np.ndarray, rows: EncodableRows
    ) -> Iterator[tuple[Partition, EncodableRows]]:
        if firsts[-1] < 1 << 15:
            places = places.astype(np.int16)  # which sorts faster
        order = np.argsort(places, kind="stable")
        placed = places[order]
        starts = np.concatenate(([0], np.flatnonzero(np.diff(placed)) + 1, [len(placed)]))
        if len(starts) > 2:
            rows = in_order(rows, order)
        for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            place = int(placed[start])
            code = int(np.searchsorted(firsts, place, side="right")) - 1
            yield (topics[code], place - int(firsts[code])), part_of(rows, start, end - start)


def named_of(batch: pa.RecordBatch) -> np.ndarray:
    """The partition that each row names, `UNNAMED` where it names none."""
    named: np.ndarray = batch.column("partition").cast(pa.int64()).fill_null(UNNAMED).to_numpy(zero_copy_only=False)
    return named


def obey(named: np.ndarray, numbers: np.ndarray, topic: str, count: int) -> None:
    """Rows that name their partition go there."""
    names = named != UNNAMED
    wrong = names & ((named < 0) | (named >= count))
    if wrong.any():
        raise BadRow(f"a row names partition {named[wrong][0]} of topic {topic!r}, which has {count}")
    numbers[names] = named[names]


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
