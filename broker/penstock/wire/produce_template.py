"""Fast parser for produce requests that start with the same bytes as an earlier one of the connection.

From the client id to the topic name, a producer's requests usually repeat. A `ProduceTemplate` is learnt from a request
that the general parser has read. For requests with the same prefix, it parses only the partitions, and has the constant
bytes of the response ready. Requests it does not support (several topics, transactions, versions before 9, tagged
fields) go to the general parser: a template never rejects a request.
"""

from __future__ import annotations

import struct

from penstock.wire.produce_frame import (
    FLEXIBLE_FROM,
    RESULT,
    BatchSlice,
    PartitionResult,
    ProduceFrame,
    Topic,
    encode_produce_response,
)

CORRELATION_OFFSET, AFTER_CORRELATION = 4, 8
"""Offset of the correlation id, the only header field that changes, and the offset after it."""
PARTITION_HEADER = struct.Struct(">iBBBB")
"""Partition index, and batch size + 1 as a varint of up to four bytes (below 256 MiB)."""
ONE_PARTITION = 2
"""Encoded count of one partition."""
NO_TAGS = bytes(3)
"""Empty tagged fields of partition, topic and request after the last batch."""
MAX_PARTITIONS = 126
"""Largest count that is encoded in one byte."""
RESPONSE_TAIL_BYTES = 9
"""Bytes after the result in a response for one partition."""
MAX_MISSES = 8
"""Consecutive requests that do not match before another template is learnt."""


class ProduceTemplate:
    """The common prefix of a connection's produce requests."""

    __slots__ = (
        "acks",
        "authorized",
        "before",
        "behind",
        "end",
        "head",
        "misses_left",
        "response_head",
        "response_layout",
        "response_size",
        "response_tail",
        "timeout_ms",
        "topic",
        "version",
    )  # fmt: skip

    def __init__(self, frame: memoryview, end: int, version: int, topic: Topic, acks: int, timeout_ms: int) -> None:
        """`end` is where the name or id of the request's only topic ends."""
        self.topic, self.acks, self.timeout_ms, self.version = topic, acks, timeout_ms, version
        self.before, self.behind = bytes(frame[:CORRELATION_OFFSET]), bytes(frame[AFTER_CORRELATION:end])
        self.end = end
        self.head = struct.Struct(f">{CORRELATION_OFFSET}si{end - AFTER_CORRELATION}sBiBBBB")
        """Layout of a request for one partition, up to the batch size."""
        self.misses_left = MAX_MISSES
        self.authorized = 0
        """The generation of ACLs with which the connection's client may write to the topic; 0 without ACLs."""
        response = bytes(encode_produce_response(0, version, [(topic, [PartitionResult(0)])]))
        self.response_head = response[AFTER_CORRELATION : -RESPONSE_TAIL_BYTES - RESULT.size]
        self.response_tail = response[-RESPONSE_TAIL_BYTES:]
        self.response_size = len(response) - 4
        self.response_layout = struct.Struct(f">ii{len(self.response_head)}sihqqq{RESPONSE_TAIL_BYTES}s")

    def read_single(self, frame: memoryview) -> tuple[int, int, int, int] | None:
        """Parse a request for one partition: (correlation id, partition, batch start, batch size). None if it does not
        match.
        """
        head = self.head
        if len(frame) < head.size:
            return None
        before, correlation_id, behind, partition_count, index, a, b, c, d = head.unpack_from(frame)
        if behind != self.behind or partition_count != ONE_PARTITION or before != self.before:
            return None
        start = head.size
        if a < 0x80:
            size = a
            start -= 3
        elif b < 0x80:
            size = a - 0x80 | b << 7
            start -= 2
        elif c < 0x80:
            size = a - 0x80 | b - 0x80 << 7 | c << 14
            start -= 1
        elif d < 0x80:
            size = a - 0x80 | b - 0x80 << 7 | c - 0x80 << 14 | d << 21
        else:
            return None
        size -= 1
        if size < 0 or frame[start + size :].tobytes() != NO_TAGS:
            return None
        self.misses_left = 0
        return correlation_id, index, start, size

    def read_batches(self, frame: memoryview) -> list[BatchSlice] | None:
        """Return the batch positions of a request; None if it does not match."""
        o = self.end
        if frame[AFTER_CORRELATION:o].tobytes() != self.behind or frame[:CORRELATION_OFFSET].tobytes() != self.before:
            return None
        try:
            left = frame[o] - 1
            if not 0 < left <= MAX_PARTITIONS:
                return None
            o += 1
            batches = []
            while left:
                left -= 1
                index, a, b, c, d = PARTITION_HEADER.unpack_from(frame, o)
                if a < 0x80:
                    size, o = a, o + 5
                elif b < 0x80:
                    size, o = a - 0x80 | b << 7, o + 6
                elif c < 0x80:
                    size, o = a - 0x80 | b - 0x80 << 7 | c << 14, o + 7
                elif d < 0x80:
                    size, o = a - 0x80 | b - 0x80 << 7 | c - 0x80 << 14 | d << 21, o + 8
                else:
                    return None
                if not size:
                    return None
                batches.append(BatchSlice(index, o, size - 1))
                o += size
                if frame[o - 1]:
                    return None
        except (IndexError, struct.error):
            return None
        is_whole = len(frame) == o + 2 and not frame[o] and not frame[o + 1]
        if is_whole:
            self.misses_left = 0
        return batches if is_whole else None

    def should_relearn(self) -> bool:
        """Count a request that does not match. Returns whether to learn a template from it: the previous one matched,
        or too many have not.
        """
        self.misses_left -= 1
        return self.misses_left < 0

    def encode_response(
        self, correlation_id: int, partition: int, base_offset: int, time_ms: int, start_offset: int
    ) -> bytes:
        """Return the response frame for a batch that was appended."""
        return self.response_layout.pack(
            self.response_size, correlation_id, self.response_head, partition, 0, base_offset, time_ms, start_offset,
            self.response_tail,
        )  # fmt: skip


def learn_template(frame: memoryview, version: int, request: ProduceFrame) -> ProduceTemplate | None:
    """Return the template of a request; None if requests like it are not supported."""
    if version < FLEXIBLE_FROM or request.transactional_id is not None or len(request.topics) != 1:
        return None
    ((topic, batches),) = request.topics
    if not 0 < len(batches) <= MAX_PARTITIONS:
        return None
    # The first batch follows the partition count, the first partition index, and the batch size + 1.
    size_bytes = max((batches[0].size + 1).bit_length() + 6, 7) // 7
    end = batches[0].start - size_bytes - 4 - 1
    found = ProduceTemplate(frame, end, version, topic, request.acks, request.timeout_ms)
    if found.read_batches(frame) != batches:
        return None
    found.misses_left = MAX_MISSES
    return found
