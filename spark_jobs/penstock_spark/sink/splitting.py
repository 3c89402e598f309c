"""Splits Arrow batches into runs of rows for one partition each, vectorised. Called by `task`, which encodes them.

The partition of a row is its column `partition` if set, else murmur2 of its key. Rows with neither go to one partition
after the other, a batch's worth at a time, so that batches are full and partitions evenly filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from penstock_spark.encode.ports import BatchEdges, EncodableRows, PartitionChooser
from penstock_spark.model.errors import PenstockSparkError
from penstock_spark.sink.columns import SinkColumns, encodable_rows, reorder_rows, slice_rows
from penstock_spark.sink.messages import Partition

GATHER_BYTES = 8 << 20
"""Maximum size collected before a split, so that each of many partitions gets batches of reasonable size."""
UNNAMED = -(1 << 63)


class BadRow(PenstockSparkError):
    """A row names no topic, or a partition that its topic does not have."""


class Splitter:
    """Splits rows by partition.

    `partitions_of` returns a topic's partition count, given the highest partition that rows name (-1: none). `turn` is
    the start partition for rows without key, so that parallel tasks start with different partitions.
    """

    def __init__(
        self,
        columns: SinkColumns,
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
        """Yield runs of rows; the rows of a partition keep their order."""
        for batch in self.gathered(batches):
            rows = encodable_rows(batch, self.columns, now_ms())
            yield from self.by_partition(batch, rows)

    def gathered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Concatenate batches to a size that is worth splitting."""
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            held.append(batch)
            held_bytes += batch.nbytes
            if held_bytes >= self._worth_splitting:
                yield concatenate(held)
                held, held_bytes = [], 0
        if held:
            yield concatenate(held)

    @property
    def _worth_splitting(self) -> int:
        if not self.columns.key and not self.columns.partition and self.topic is not None:
            return self.batch_bytes
        ways = 1 if self.topic is None else self._partitions_of(self.topic, -1)
        return min(GATHER_BYTES, max(1, ways) * self.batch_bytes)

    def by_partition(self, batch: pa.RecordBatch, rows: EncodableRows) -> Iterator[tuple[Partition, EncodableRows]]:
        """Yield the runs of one batch."""
        topics, codes = self.topics_of(batch)
        named = named_partitions(batch) if self.columns.partition else None
        if len(topics) == 1 and rows.key.null_count == len(rows.key) and named is None:
            yield from self._in_turn(topics[0], rows)
            return
        chosen: list[slice | np.ndarray] = [slice(None)]
        if len(topics) > 1:
            chosen = [np.flatnonzero(codes == code) for code in range(len(topics))]
        highest = [-1 if named is None else int(named[part].max()) for part in chosen]
        counts = np.array(list(map(self._partitions_of, topics, highest)), dtype=np.int64)
        firsts = np.concatenate(([0], np.cumsum(counts)))
        lanes = np.empty(len(rows.key), dtype=np.int64)
        for code, (topic, part, count) in enumerate(zip(topics, chosen, counts.tolist(), strict=True)):
            keys = rows.key if isinstance(part, slice) else rows.key.take(pa.array(part))
            numbers = self._partitions(keys, count).astype(np.int64)
            if named is not None:
                apply_named(named[part], numbers, topic, count)
            self._fill_in_turn(numbers, count, rows)
            lanes[part] = numbers + firsts[code]
        yield from self._runs(topics, firsts, lanes, rows)

    def topics_of(self, batch: pa.RecordBatch) -> tuple[list[str], np.ndarray]:
        """Return the topics of a batch, and the index of each row's topic."""
        if self.topic is not None:
            return [self.topic], np.zeros(0, dtype=np.int64)
        column = batch.column("topic")
        if column.null_count:
            raise BadRow('a row has no topic: column "topic" is null; set option "topic", or filter out such rows')
        encoded = column.dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False)

    def _fill_in_turn(self, numbers: np.ndarray, count: int, rows: EncodableRows) -> None:
        """Assign partitions to rows with neither partition nor key."""
        left = np.flatnonzero(numbers < 0)
        if len(left):
            turns = np.arange(len(left)) // self._rows_of_a_batch(rows)
            numbers[left] = (self._turn + turns) % count
            self._turn += int(turns[-1]) + 1

    def _in_turn(self, topic: str, rows: EncodableRows) -> Iterator[tuple[Partition, EncodableRows]]:
        """Yield runs for a batch in which no row has a partition or key: rows need not be moved."""
        count, edges = self._partitions_of(topic, -1), self._batch_edges(rows, self.batch_bytes)
        for start, end in pairwise(edges):
            yield (topic, self._turn % count), slice_rows(rows, start, end - start)
            self._turn += 1

    def _rows_of_a_batch(self, rows: EncodableRows) -> int:
        size_bytes = rows.value.nbytes + rows.key.nbytes
        return max(1, self.batch_bytes * len(rows.value) // max(1, int(size_bytes)))

    def _runs(
        self, topics: list[str], firsts: np.ndarray, lanes: np.ndarray, rows: EncodableRows
    ) -> Iterator[tuple[Partition, EncodableRows]]:
        if firsts[-1] < 1 << 15:
            lanes = lanes.astype(np.int16)  # sorts faster
        order = np.argsort(lanes, kind="stable")
        ordered = lanes[order]
        starts = np.concatenate(([0], np.flatnonzero(np.diff(ordered)) + 1, [len(ordered)]))
        if len(starts) > 2:
            rows = reorder_rows(rows, order)
        for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            lane = int(ordered[start])
            code = int(np.searchsorted(firsts, lane, side="right")) - 1
            yield (topics[code], lane - int(firsts[code])), slice_rows(rows, start, end - start)


def named_partitions(batch: pa.RecordBatch) -> np.ndarray:
    """Return the partition that each row names; `UNNAMED` if none."""
    named: np.ndarray = batch.column("partition").cast(pa.int64()).fill_null(UNNAMED).to_numpy(zero_copy_only=False)
    return named


def apply_named(named: np.ndarray, numbers: np.ndarray, topic: str, count: int) -> None:
    """Set the partition of rows that name one. Raises `BadRow` if the topic does not have it."""
    names = named != UNNAMED
    wrong = names & ((named < 0) | (named >= count))
    if wrong.any():
        raise BadRow(f'a row names partition {named[wrong][0]} of topic "{topic}", which has {count} partitions')
    numbers[names] = named[names]


def concatenate(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate batches."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
