"""Control batches: markers that end a transaction in a partition (KIP-98).

The partition's leader writes them on request of the transaction coordinator; recovery, followers and consumers read
them. A marker is a batch of one record: key (version i16, type i16: 0 abort, 1 commit), value (version i16, coordinator
epoch i32).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.wire.batch import CONTROL, TRANSACTIONAL, BatchHeader
from penstock.wire.batch_builder import BatchBuilder
from penstock.wire.primitives import Buffer
from penstock.wire.records import iterate_records
from penstock.wire.schema import MalformedMessage

KEY = struct.Struct(">hh")
VALUE = struct.Struct(">hi")
ABORT, COMMIT = 0, 1
VERSION = 0
MAX_BYTES = 1024
"""Maximum size of a control batch that is parsed."""


class Marker(NamedTuple):
    """The end of a producer's transaction in a partition."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int


def build_marker(marker: Marker, now_ms: int) -> bytearray:
    """Return the batch, to be stamped with offset and leader epoch."""
    builder = BatchBuilder()
    key = KEY.pack(VERSION, COMMIT if marker.committed else ABORT)
    builder.append(key, VALUE.pack(VERSION, marker.coordinator_epoch), timestamp_ms=now_ms)
    return bytearray(
        builder.build(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            attributes=TRANSACTIONAL | CONTROL,
        )
    )


def parse_marker(header: BatchHeader, batch: Buffer) -> Marker | None:
    """Return the marker of a control batch; None for another kind. Raises MalformedMessage."""
    assert header.is_control, f"the batch at offset {header.base_offset} is not a control batch"
    if header.producer_id < 0:
        return None  # not a transaction marker
    if header.size_bytes > MAX_BYTES:
        raise MalformedMessage(f"a control batch of {header.size_bytes} bytes")
    for record in iterate_records(memoryview(batch), header, MAX_BYTES):
        if record.key is None or len(record.key) < KEY.size:
            raise MalformedMessage("a control record without a type")
        _, kind = KEY.unpack_from(record.key)
        if kind not in (ABORT, COMMIT):
            return None
        if record.value is None or len(record.value) < VALUE.size:
            raise MalformedMessage("a marker without a coordinator epoch")
        _, coordinator_epoch = VALUE.unpack_from(record.value)
        return Marker(header.producer_id, header.producer_epoch, kind == COMMIT, coordinator_epoch)
    return None
