"""Interface of the encoder, which `sink` calls for each Arrow batch of rows."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa


class ProducerId(NamedTuple):
    """A producer id and epoch; `producer_id` -1 means no idempotence."""

    producer_id: int
    epoch: int
    transactional: bool


class EncodableRows(NamedTuple):
    """Columns of equal length: binary key and value, headers as `columns.HEADER` lists or None, timestamps in ms."""

    key: pa.BinaryArray
    value: pa.BinaryArray
    headers: pa.ListArray | None
    timestamp_ms: np.ndarray


class EncodedBatch(NamedTuple):
    """A complete batch with CRC, except base offset and leader epoch, which the leader writes."""

    data: bytearray
    records: int


class BatchEdges(Protocol):
    """Type of `batches.batch_edges`."""

    def __call__(self, rows: EncodableRows, max_bytes: int) -> list[int]:
        """Return the index of each batch's first row, and the number of rows: `encode` makes one batch between two
        edges."""


class PartitionChooser(Protocol):
    """Type of `murmur.partitions`."""

    def __call__(self, keys: pa.BinaryArray, count: int) -> np.ndarray:
        """Return Kafka's partition of each key, murmur2 of its bytes modulo `count`; -1 for null."""
