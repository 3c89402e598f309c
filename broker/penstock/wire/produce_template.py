"""Produce requests that begin as an earlier one did: what a producer repeats is read once.

From its client id to the topic's name, a producer's requests are the same bytes again and again. A `ProduceTemplate` is
learnt from a request that the general parser has read. Of one that begins with the same bytes it only reads the
partitions, and it knows what stands around the result in the answer. What it does not know (several topics,
transactions, the encoding before version 9, tagged fields) is left to the general parser: a likeness refuses nothing.
"""

from __future__ import annotations

import struct

from penstock.wire.produce_frame import (
    FLEXIBLE_FROM,
    RESULT,
    BatchPlace,
    PartitionResult,
    ProduceFrame,
    Topic,
    encode_produce_response,
)

CORRELATION_AT, BEHIND = 4, 8
"""The one field of the head that differs, and what follows it."""
PLACE = struct.Struct(">iBBBB")
"""A partition's index, and its batch's size plus one: a varint, which has no more bytes below 256 MiB."""
ONE = 2
"""How one partition is counted."""
NO_TAGS = bytes(3)
"""Behind the last batch: of its partition, its topic, and the request."""
MAX_PARTITIONS = 126
"""So many are counted in one byte."""
ANSWER_TAIL = 9
"""The bytes behind the result in an answer for one partition."""
MISSES = 8
"""After so many requests that are not alike in the beginning, another one is learnt from."""


class ProduceTemplate:
    """What requests of a connection have in common."""

    __slots__ = (
        "acks", "answer_head", "answer_size", "answer_tail", "answer_whole", "before", "behind", "end", "head",
        "misses_left", "timeout_ms", "topic", "version",
    )  # fmt: skip

    def __init__(self, frame: memoryview, end: int, version: int, topic: Topic, acks: int, timeout_ms: int) -> None:
        """The name or id of the request's only topic ends at `end` of its frame."""
        self.topic, self.acks, self.timeout_ms, self.version = topic, acks, timeout_ms, version
        self.before, self.behind = bytes(frame[:CORRELATION_AT]), bytes(frame[BEHIND:end])
        self.end = end
        self.head = struct.Struct(f">{CORRELATION_AT}si{end - BEHIND}sBiBBBB")
        """All of a request for one partition up to its batch's size."""
        self.misses_left = MISSES
        answer = bytes(encode_produce_response(0, version, [(topic, [PartitionResult(0)])]))
        self.answer_head = answer[BEHIND : -ANSWER_TAIL - RESULT.size]
        self.answer_tail = answer[-ANSWER_TAIL:]
        self.answer_size = len(answer) - 4
        self.answer_whole = struct.Struct(f">ii{len(self.answer_head)}sihqqq{ANSWER_TAIL}s")

    def single(self, frame: memoryview) -> tuple[int, int, int, int] | None:
        """(correlation id, partition, where its batch begins, the batch's size) of a request for one partition; None
        for one that is not alike, or that this cannot read."""
        head = self.head
        if len(frame) < head.size:
            return None
        before, correlation_id, behind, counted, index, a, b, c, d = head.unpack_from(frame)
        if behind != self.behind or counted != ONE or before != self.before:
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

    def places(self, frame: memoryview) -> list[BatchPlace] | None:
        """Where the batches of a request lie; None for one that is not alike, or that this cannot read."""
        o = self.end
        if frame[BEHIND:o].tobytes() != self.behind or frame[:CORRELATION_AT].tobytes() != self.before:
            return None
        try:
            left = frame[o] - 1
            if not 0 < left <= MAX_PARTITIONS:
                return None
            o += 1
            places = []
            while left:
                left -= 1
                index, a, b, c, d = PLACE.unpack_from(frame, o)
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
                places.append(BatchPlace(index, o, size - 1))
                o += size
                if frame[o - 1]:
                    return None
        except (IndexError, struct.error):
            return None
        is_whole = len(frame) == o + 2 and not frame[o] and not frame[o + 1]
        if is_whole:
            self.misses_left = 0
        return places if is_whole else None

    def misses(self) -> bool:
        """Whether a request that is not alike should be learnt from: the last one was alike, or too many were not."""
        self.misses_left -= 1
        return self.misses_left < 0

    def answer(self, correlation_id: int, partition: int, base_offset: int, time_ms: int, start_offset: int) -> bytes:
        """The whole frame that says that the batch for the only partition was taken."""
        return self.answer_whole.pack(
            self.answer_size, correlation_id, self.answer_head, partition, 0, base_offset, time_ms, start_offset,
            self.answer_tail,
        )  # fmt: skip


def learn(frame: memoryview, version: int, request: ProduceFrame) -> ProduceTemplate | None:
    """What requests like this one have in common; None for those that are not taken up."""
    if version < FLEXIBLE_FROM or request.transactional_id is not None or len(request.topics) != 1:
        return None
    ((topic, places),) = request.topics
    if not 0 < len(places) <= MAX_PARTITIONS:
        return None
    # Before the first batch stand the count of partitions, the first one's index, and the batch's size plus one.
    size_bytes = max((places[0].size + 1).bit_length() + 6, 7) // 7
    end = places[0].start - size_bytes - 4 - 1
    found = ProduceTemplate(frame, end, version, topic, request.acks, request.timeout_ms)
    if found.places(frame) != places:
        return None
    found.misses_left = MISSES
    return found
