"""Decides where batches of Produce requests are inspected: on the event loop if that takes little, else in a thread.

Used by `produce`. Decompressing a batch of 1 MiB takes milliseconds, for which no other connection is served; for a
small batch the way to a thread and back costs more than the work. Codecs release the interpreter's lock, so threads do
their work beside the event loop.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

from penstock.config.values import AS_PRODUCED, EVERY_RECORD, NO_VALIDATION, TopicConfig
from penstock.replica.inspection import Inspection, inspect, inspect_fully, needs_codec
from penstock.replica.leader import Leader
from penstock.wire.batch import CODEC_MASK, HEADER_SIZE, read_header
from penstock.wire.compression import MAX_RATIO, DecompressedTooLarge

INLINE_BYTES = 16 * 1024
"""Batches of at most this size are inspected on the event loop, unless they are to be compressed anew."""
INLINE_DECOMPRESSED_BYTES = 128 * 1024
"""The most that a batch inspected on the event loop may decompress to."""
CODEC_OFFSET = 22
"""The byte of a batch whose low bits are the codec."""
MAX_THREADS = 4


class Inspections:
    """The threads, which are started when there is something for them to do."""

    def __init__(self) -> None:
        self.executor: ThreadPoolExecutor | None = None

    def inline(self, partition: Leader, batch: memoryview) -> Inspection | None:
        """Inspect a batch that `may_be_inline` now; None if it takes too long for the event loop after all."""
        try:
            header = read_header(batch)
            return inspect(batch, header, partition.config, partition.name, INLINE_DECOMPRESSED_BYTES)
        except DecompressedTooLarge:
            return None

    def start(self, partition: Leader, batch: memoryview) -> asyncio.Future[Inspection]:
        """Inspect a batch in a thread; its bytes must stay as they are, but for offset and leader epoch."""
        if self.executor is None:
            self.executor = ThreadPoolExecutor(min(os.cpu_count() or 1, MAX_THREADS), "penstock-inspect")
        return asyncio.get_running_loop().run_in_executor(
            self.executor, inspect_fully, batch, read_header(batch), partition.config, partition.name
        )

    def close(self) -> None:
        """Start nothing more. Called when no request is served any more."""
        if self.executor is not None:
            self.executor.shutdown(wait=False, cancel_futures=True)


def needs_inspection(config: TopicConfig, frame: memoryview, start: int, size: int) -> bool:
    """Whether the append of the batch at `start` of a request's frame has to be preceded by an inspection."""
    if size < HEADER_SIZE:
        return False
    codec = frame[start + CODEC_OFFSET] & CODEC_MASK
    if codec >= len(MAX_RATIO):
        return False
    if config.compression_codec != AS_PRODUCED and needs_codec(config, codec):
        return True
    if config.cleanup_compact or config.record_validation == EVERY_RECORD:
        return codec != 0 or size > INLINE_BYTES
    return codec != 0 and config.record_validation != NO_VALIDATION


def may_be_inline(config: TopicConfig, frame: memoryview, start: int, size: int) -> bool:
    """Whether a batch that needs an inspection may be inspected on the event loop."""
    return size <= INLINE_BYTES and not needs_codec(config, frame[start + CODEC_OFFSET] & CODEC_MASK)
