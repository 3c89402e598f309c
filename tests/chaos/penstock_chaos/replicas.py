"""Compares the replicas of partitions on disk, byte for byte, after their brokers have stopped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from struct import Struct
from uuid import UUID

from penstock_simulation.findings import Finding

HEADER = Struct(">qi")
"""Base offset and length of a batch; the last offset delta is at byte 23."""
HEADER_BYTES = 12
LAST_OFFSET_DELTA = Struct(">i")
LAST_OFFSET_DELTA_AT = 23


def batches(directory: Path) -> Iterator[tuple[int, int, bytes]]:
    """Return (base offset, last offset, bytes) of each batch of a partition's log."""
    for segment in sorted(directory.glob("*.log")):
        data = segment.read_bytes()
        position = 0
        while position + HEADER_BYTES <= len(data):
            base, length = HEADER.unpack_from(data, position)
            end = position + HEADER_BYTES + length
            if length <= 0 or end > len(data):
                break
            (delta,) = LAST_OFFSET_DELTA.unpack_from(data, position + LAST_OFFSET_DELTA_AT)
            yield base, base + delta, data[position:end]
            position = end


def differing(
    topic_id: UUID, topic: str, high_watermarks: Mapping[int, int], data: Mapping[int, Path]
) -> Iterator[Finding]:
    """Compare the replicas, all of which were in sync. `data` maps brokers to their data directories."""
    for partition, high_watermark in high_watermarks.items():
        held = {}
        for broker_id, directory in data.items():
            found = list(batches(directory / f"{topic_id}-{partition}"))
            held[broker_id] = [each for each in found if each[0] < high_watermark]
            end = found[-1][1] + 1 if found else 0
            if end < high_watermark:
                yield Finding(
                    "replicas differ",
                    f"broker {broker_id} was in sync and holds {topic}-{partition} to {end}; the high watermark is"
                    f" {high_watermark}",
                )
        for (a, a_batches), (b, b_batches) in pairwise(held.items()):
            for one, other in zip(a_batches, b_batches, strict=False):
                if one != other:
                    yield Finding(
                        "replicas differ", f"brokers {a} and {b} differ in {topic}-{partition} from offset {one[0]} on"
                    )
                    break
