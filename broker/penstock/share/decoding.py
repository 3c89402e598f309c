"""Decodes batches for share groups that need the contents of records: small ones on the event loop, others in a thread.

One object per open share-partition. Used by `api.share.reading` while it acquires records: contents that are not known
yet end the acquisition, and `on_decoded` is called once a thread has read them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from penstock.log.types import LogError, LogSlice
from penstock.replica.leader import Leader
from penstock.share.contents import BatchContents, ContentsQuery, all_contents, decode_contents
from penstock.wire.batch import BatchHeader
from penstock.wire.compression import DecompressedTooLarge
from penstock.wire.records import iterate_batches
from penstock.wire.schema import MalformedMessage

MAX_DECOMPRESSED_BYTES = 256 << 20
"""Decompressed size of a batch, which produced batches do not exceed."""
MAX_INLINE_BYTES = 64 << 10
"""Size, compressed and decompressed, up to which a batch is decoded on the event loop."""
MAX_INLINE_RECORDS = 500
"""Records that are decoded on the event loop in one turn: about a millisecond."""
MAX_THREAD_READ_BYTES = 1 << 20
MAX_THREAD_RECORDS = 20_000
"""Records after which a thread starts no further batch."""

Decoded = dict[int, BatchContents] | OSError


class BatchDecoder:
    """The contents of the batches that a share-partition reads next."""

    def __init__(self, role: Leader, on_decoded: Callable[[], None]) -> None:
        self._role, self._on_decoded = role, on_decoded
        self._query = ContentsQuery(False, None)
        self._known: dict[int, BatchContents] = {}
        """By the base offset of the batch, in order."""
        self._in_thread: asyncio.Future[Decoded] | None = None
        self._error: OSError | None = None
        self._inline_records = 0
        self.thread_reads = 0
        """Number of reads that threads have decoded, or decode."""

    def start_turn(self, query: ContentsQuery) -> None:
        """Start an acquisition. The group's settings may have changed since the last one."""
        if query != self._query:
            self._query, self._known = query, {}
        self._inline_records = 0

    @property
    def is_needed(self) -> bool:
        """Whether the group needs the contents of records."""
        return self._query.needs_keys or self._query.filter is not None

    def contents(self, records: LogSlice, position: int, header: BatchHeader) -> BatchContents | None:
        """Return the contents of the batch at a position of the log's file.

        Returns None until a thread has decoded it. Batches are asked for in their order. Raises OSError.
        """
        known = self._known
        for base_offset in [offset for offset in known if offset < header.base_offset]:
            del known[base_offset]
        found = known.get(header.base_offset)
        if found is None and self._in_thread is None:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            found = self._decode_inline(records, position, header)
            if found is None:
                self._start_thread(header)
            else:
                known[header.base_offset] = found
        return found

    def _decode_inline(self, records: LogSlice, position: int, header: BatchHeader) -> BatchContents | None:
        """Decode a batch now; None if that takes too long for the event loop. Raises OSError."""
        self._inline_records += header.record_count
        if self._inline_records > MAX_INLINE_RECORDS or header.size_bytes > MAX_INLINE_BYTES:
            return None
        batch = records.file.read_at(position, header.size_bytes)
        try:
            return decode_contents(memoryview(batch), header, self._query, MAX_INLINE_BYTES)
        except DecompressedTooLarge:
            return None

    def _start_thread(self, header: BatchHeader) -> None:
        """Decode a batch, and those that follow it, in a thread."""
        role = self._role
        try:
            first = max(header.base_offset, role.log.start_offset)
            records = role.read(first, MAX_THREAD_READ_BYTES, at_least_one=True)
        except LogError:
            return  # the acquisition finds the error, or the new start of the log
        if records is None:
            return
        self.thread_reads += 1
        query = self._query
        loop = asyncio.get_running_loop()
        self._in_thread = loop.run_in_executor(None, decode_slice, records, header.base_offset, query)
        self._in_thread.add_done_callback(partial(self._complete_thread, records, query))

    def _complete_thread(self, records: LogSlice, query: ContentsQuery, done: asyncio.Future[Decoded]) -> None:
        records.release()
        self._in_thread = None
        if done.cancelled():
            return
        found = done.result()
        if isinstance(found, OSError):
            self._error = found
        elif query == self._query:
            self._known.update(found)
        self._on_decoded()


def decode_slice(records: LogSlice, base_offset: int, query: ContentsQuery) -> Decoded:
    """Return the contents of batches by their base offsets, or the error of the disk. Runs in a thread.

    The batch at `base_offset` is always among them: if it is damaged, all of its records pass.
    """
    decoded: dict[int, BatchContents] = {}
    count = 0
    try:
        for header, batch in iterate_batches(records.file.read_at(records.position, records.size), check_crc=False):
            if not header.is_control:
                decoded[header.base_offset] = decode_contents(batch, header, query, MAX_DECOMPRESSED_BYTES)
                count += header.record_count
            if count >= MAX_THREAD_RECORDS:
                break
    except OSError as e:
        return e
    except MalformedMessage:
        pass
    return decoded if base_offset in decoded else {base_offset: all_contents(), **decoded}
