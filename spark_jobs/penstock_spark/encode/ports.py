"""From Arrow to batches as they go to brokers: what `sink` calls for each Arrow batch of rows."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa


class ProducerId(NamedTuple):
    """`producer_id` -1: without idempotence."""

    producer_id: int
    epoch: int
    transactional: bool


class EncodableRows(NamedTuple):
    """Columns of the same length: key and value binary, headers as `columns.HEADER` lists or None, time in ms."""

    key: pa.BinaryArray
    value: pa.BinaryArray
    headers: pa.ListArray | None
    timestamp_ms: np.ndarray


class EncodedBatch(NamedTuple):
    """A whole batch but for base offset and leader epoch, which the leader writes; its CRC is right."""

    data: bytearray
    records: int


class Encode(Protocol):
    def __call__(
        self, rows: EncodableRows, codec: int, max_bytes: int, producer: ProducerId, base_sequence: int
    ) -> list[EncodedBatch]:
        """Batches of at most `max_bytes` before compression (one record may be larger), in order. Sequences run on
        from `base_sequence` and wrap at 2**31. Vectorised: no work in Python for each record."""


class BatchEdges(Protocol):
    def __call__(self, rows: EncodableRows, max_bytes: int) -> list[int]:
        """The index of the first row of each batch, and the number of rows: what lies between two of these, `encode`
        makes one batch of."""


class PartitionChooser(Protocol):
    def __call__(self, keys: pa.BinaryArray, count: int) -> np.ndarray:
        """For each key Kafka's partition, murmur2 of its bytes over `count`; -1 where the key is null."""
