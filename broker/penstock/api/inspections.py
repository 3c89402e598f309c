"""Decides where the batches of Produce requests are inspected: small ones on the event loop, others in a thread.

Used by `produce`. Decompressing a batch of 1 MiB takes milliseconds, in which the event loop serves no other
connection; for a small batch, a switch to a thread costs more than the inspection. Codecs release the GIL, so threads
run beside the event loop.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

from penstock.config.topic import AS_PRODUCED, EVERY_RECORD, NO_VALIDATION
from penstock.replica.inspection import Inspection, inspect, inspect_fully, needs_codec
from penstock.replica.leader import Leader
from penstock.wire.batch import CODEC_MASK, HEADER_SIZE, read_header
from penstock.wire.compression import MAX_RATIO, DecompressedTooLarge

MAX_INLINE_BYTES = 16 * 1024
"""Batches up to this size are inspected on the event loop, unless they must be recompressed."""
MAX_INLINE_DECOMPRESSED_BYTES = 128 * 1024
"""Decompressed size up to which a batch is inspected on the event loop."""
CODEC_OFFSET = 22
"""Offset of the batch byte whose low bits are the codec."""
MAX_THREADS = 4


class Inspections:
    """The inspection threads, started on first use."""

    def __init__(self) -> None:
        self.executor: ThreadPoolExecutor | None = None

    def inline(self, partition: Leader, batch: memoryview) -> Inspection | None:
        """Inspect a batch; None if that takes too long for the event loop: it is large or decompresses to much, or it
        must be recompressed."""
        if len(batch) > MAX_INLINE_BYTES or needs_codec(partition.config, batch[CODEC_OFFSET] & CODEC_MASK):
            return None
        try:
            header = read_header(batch)
            now_ms = partition.clock.wall_ms()
            return inspect(batch, header, partition.config, partition.name, now_ms, MAX_INLINE_DECOMPRESSED_BYTES)
        except DecompressedTooLarge:
            return None

    def start(self, partition: Leader, batch: memoryview) -> asyncio.Future[Inspection]:
        """Inspect a batch in a thread. Until it is done, only the batch's base offset and leader epoch may change."""
        if self.executor is None:
            self.executor = ThreadPoolExecutor(min(os.cpu_count() or 1, MAX_THREADS), "penstock-inspect")
        return asyncio.get_running_loop().run_in_executor(
            self.executor,
            inspect_fully,
            batch,
            read_header(batch),
            partition.config,
            partition.name,
            partition.clock.wall_ms(),
        )

    def close(self) -> None:
        """Cancel pending inspections. Called once all connections are closed."""
        if self.executor is not None:
            self.executor.shutdown(wait=False, cancel_futures=True)


def needs_inspection(partition: Leader, frame: memoryview, start: int, size: int) -> bool:
    """Return whether the batch at `start` of the frame must be inspected before its append."""
    if size < HEADER_SIZE:
        return False
    codec = frame[start + CODEC_OFFSET] & CODEC_MASK
    if (not codec and partition.checks_only_ends) or codec >= len(MAX_RATIO):
        return False
    config = partition.config
    if config.compression_codec != AS_PRODUCED and needs_codec(config, codec):
        return True
    if config.cleanup_compact or config.delivery_schedule_enable or config.record_validation == EVERY_RECORD:
        return codec != 0 or size > MAX_INLINE_BYTES
    return codec != 0 and config.record_validation != NO_VALIDATION
