"""Values of a request that differ between the two brokers: ids they assign, and batches that contain such ids.

A request is a tree of dicts, lists and plain values. Each `Ref` or `BatchSpec` in it is resolved separately for each
broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from penstock.wire.batch import CRC, HEADER, BatchHeader, checksum
from penstock.wire.batch_builder import build_batch
from penstock.wire.record import Record

CRC_OFFSET = 17
UNKNOWN_ID = UUID(int=5)
"""Id of a topic that the case has not created."""
Tree = Any
"""A request or response as dicts, lists and plain values."""


@dataclass(frozen=True)
class Ref:
    """A value that each broker assigns itself, such as a topic id; `plus` is added to a number."""

    name: str
    plus: int = 0


@dataclass(frozen=True)
class BatchSpec:
    """A record batch. `header` overrides header fields by name; the CRC is recomputed unless `header` has one."""

    records: tuple[Record, ...] = ()
    codec: int = 0
    producer_id: int | Ref = -1
    producer_epoch: int | Ref = -1
    base_sequence: int = -1
    attributes: int = 0
    header: Mapping[str, int] = field(default_factory=dict)
    payload: bytes | None = None
    """Replacement for the records' bytes."""
    cut_bytes: int = 0
    """Number of bytes cut off at the end."""
    times: int = 1
    """Number of repetitions of the batch."""


@dataclass(frozen=True)
class Joined:
    """Several concatenated batch specs."""

    batches: tuple[BatchSpec, ...]


def resolve(value: Any, assigned: Mapping[str, Any]) -> Any:
    """Replace each `Ref` and batch in a tree by its value for one broker, whose ids are `assigned`."""
    if isinstance(value, dict):
        return {key: resolve(part, assigned) for key, part in value.items()}
    if isinstance(value, list):
        return [resolve(part, assigned) for part in value]
    if isinstance(value, Ref):
        found = assigned.get(value.name, UNKNOWN_ID) if value.name.startswith("id:") else assigned[value.name]
        return found + value.plus if value.plus else found
    if isinstance(value, BatchSpec):
        return batch_bytes(value, assigned)
    if isinstance(value, Joined):
        return b"".join(batch_bytes(batch, assigned) for batch in value.batches)
    return value


def batch_bytes(spec: BatchSpec, assigned: Mapping[str, Any]) -> bytes:
    """Encode a batch for one broker."""
    batch = bytearray(
        build_batch(
            spec.records,
            codec=spec.codec,
            producer_id=resolve(spec.producer_id, assigned),
            producer_epoch=resolve(spec.producer_epoch, assigned),
            base_sequence=spec.base_sequence,
        )
    )
    if spec.payload is not None:
        batch[HEADER.size :] = spec.payload
        batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    head = BatchHeader._make(HEADER.unpack_from(batch))
    head = head._replace(attributes=head.attributes | spec.attributes)._replace(**spec.header)
    HEADER.pack_into(batch, 0, *head)
    if "crc" not in spec.header:
        CRC.pack_into(batch, CRC_OFFSET, checksum(memoryview(batch), 0, len(batch)))
    whole = bytes(batch[: len(batch) - spec.cut_bytes] if spec.cut_bytes else batch)
    return whole * spec.times


def printable(value: Any) -> Any:
    """Return a tree that JSON can represent."""
    if isinstance(value, dict):
        return {key: printable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [printable(part) for part in value]
    if isinstance(value, Ref):
        return {"$assigned": value.name, **({"plus": value.plus} if value.plus else {})}
    if isinstance(value, BatchSpec):
        fields = {name: printable(part) for name, part in vars(value).items() if part not in (None, {}, 0, -1)}
        return {"$batch": fields}
    if isinstance(value, Joined):
        return {"$batches": printable(value.batches)}
    if isinstance(value, Record):
        return {"key": printable(value.key), "value": printable(value.value), "timestamp_ms": value.timestamp_ms}
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return {"$bytes": data[:200].hex(), **({"size_bytes": len(data)} if len(data) > 200 else {})}
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, str) and len(value) > 400:
        return {"$text": value[:60], "size": len(value)}
    return value
