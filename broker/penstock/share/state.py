"""The stored form of a share-partition's state: binary and run-length coded, one value per group and partition.

Layout: format u8, state epoch i32, leader epoch i32, write number i64, start offset i64, in format 2 the dead letters,
then the number of runs as an unsigned varint. For each run: its length as a signed varint (gaps may be long), then
delivery count and state as an unsigned one. A run starts where the previous one ends.

The dead letters are a byte, 1 if a producer of letters exists and otherwise 0, and after a 1: producer id i64, producer
epoch i16, sequence i32, topic id (16 bytes), partition i32, first offset i64 and number of letters i32 of the
outstanding batch. A share-partition without them is written in format 1, which earlier versions read.

The group's coordinator writes the state. It is decoded from a store or a request, so everything is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from penstock.share.dead_letters import MAX_BATCHED_LETTERS, DeadLetterState, DeadLetterTarget
from penstock.share.partition import ShareSnapshot
from penstock.share.window import RecordState, StateRun
from penstock.wire.errors import ErrorCode
from penstock.wire.primitives import Buffer
from penstock.wire.schema import MalformedMessage
from penstock.wire.varint import read_uvarint, read_varlong, write_uvarint, write_varlong

FORMAT = 1
DEAD_LETTER_FORMAT = 2
HEAD = struct.Struct(">Biiqq")
DEAD_LETTERS = struct.Struct(">qhi16siqi")
MAX_RUNS = 20_001
"""Twice the largest `share.partition.max.record.locks`: each delivered record may be followed by a gap in the log."""
MAX_STATE_BYTES = 160 << 10
"""Upper bound of an encoded state."""
MAX_DELIVERY_COUNT = 1 << 15
MAX_OFFSET = (1 << 63) - 1
STATE_CODES = (RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED, RecordState.ARCHIVING)
"""The states by their stored number. Format 1 has no ARCHIVING."""
CODES_BY_STATE = {state: code for code, state in enumerate(STATE_CODES)}
STATE_BITS = 2
ONE_BYTE_VARLONG, ONE_BYTE_UVARINT = 1 << 6, 1 << 7
"""Numbers from 0 to below these are encoded in one byte."""
CLAIM_SHIFT = 32


class InvalidShareState(ValueError):
    """The bytes are not the state of a share-partition."""


class StateVersion(NamedTuple):
    """What orders and fences the writes of a share-partition's state.

    The state epoch changes when an administrator sets the start offset, the leader epoch with the partition's leader.
    The upper half of the write number counts the claims of leaders, the lower half the writes after a claim.
    """

    state_epoch: int
    leader_epoch: int
    write: int

    def claimed(self, leader_epoch: int) -> StateVersion:
        """Return the version after a leader has claimed the state: writes of earlier claims no longer follow it."""
        return StateVersion(self.state_epoch, leader_epoch, ((self.write >> CLAIM_SHIFT) + 1) << CLAIM_SHIFT)

    def next_write(self) -> StateVersion:
        """Return the version of the claimer's next write."""
        return self._replace(write=self.write + 1)

    def refusal(self, new: StateVersion) -> ErrorCode:
        """Return the error of a write of version `new` over this one, or NONE."""
        if new.state_epoch != self.state_epoch:
            return ErrorCode.FENCED_STATE_EPOCH
        follows = new.leader_epoch == self.leader_epoch and new.write > self.write
        return ErrorCode.NONE if follows else ErrorCode.FENCED_LEADER_EPOCH


class ShareState(NamedTuple):
    """The state of a share-partition as it is stored."""

    version: StateVersion
    snapshot: ShareSnapshot


def encode_state(state: ShareState) -> bytes:
    """Encode a state, in at most `MAX_STATE_BYTES`."""
    (state_epoch, leader_epoch, write), (start_offset, runs, dead_letters) = state
    assert len(runs) <= MAX_RUNS, f"a share-partition has {len(runs)} runs, more than {MAX_RUNS}"
    is_new = dead_letters is not None or RecordState.ARCHIVING in [run[2] for run in runs]
    form = DEAD_LETTER_FORMAT if is_new else FORMAT
    out = bytearray(HEAD.pack(form, state_epoch, leader_epoch, write, start_offset))
    if is_new:
        out += encode_dead_letters(dead_letters)
    write_uvarint(out, len(runs))
    encode_runs(out, runs, start_offset)
    assert len(out) <= MAX_STATE_BYTES, f"a state of {len(runs)} runs has {len(out)} bytes"
    return bytes(out)


def encode_runs(out: bytearray, runs: Sequence[StateRun], start_offset: int) -> None:
    """Append the runs. Most take two bytes: a state has thousands of them where neighbours differ."""
    append, position = out.append, start_offset
    for first, last, record_state, delivery_count in runs:
        assert first == position <= last, f"a run from {first} does not follow offset {position}"
        position = last + 1
        length, packed = position - first, delivery_count << STATE_BITS | CODES_BY_STATE[record_state]
        if length < ONE_BYTE_VARLONG and packed < ONE_BYTE_UVARINT:
            append(length << 1)
            append(packed)
        else:
            write_varlong(out, length)
            write_uvarint(out, packed)


def encode_dead_letters(state: DeadLetterState | None) -> bytes:
    """Encode the dead letters of a share-partition."""
    if state is None:
        return b"\0"
    producer_id, epoch, sequence, (topic_id, partition), first, count = state
    return b"\x01" + DEAD_LETTERS.pack(producer_id, epoch, sequence, topic_id.bytes, partition, first, count)


class StateHead(NamedTuple):
    """The start of an encoded state."""

    form: int
    version: StateVersion
    start_offset: int


def decode_head(data: Buffer) -> StateHead:
    """Decode the start of a state, whose runs may be damaged. Raises InvalidShareState."""
    if not HEAD.size < len(data) <= MAX_STATE_BYTES:
        raise InvalidShareState(f"a share-partition's state has {len(data)} bytes")
    form, state_epoch, leader_epoch, write, start_offset = HEAD.unpack_from(data)
    if form not in (FORMAT, DEAD_LETTER_FORMAT):
        raise InvalidShareState(f"unknown format {form}")
    if min(state_epoch, leader_epoch, write, start_offset) < 0:
        raise InvalidShareState("an epoch, a write number or the start offset is negative")
    return StateHead(form, StateVersion(state_epoch, leader_epoch, write), start_offset)


def decode_state(data: Buffer) -> ShareState:
    """Decode a state. Raises InvalidShareState."""
    form, version, start_offset = decode_head(data)
    codes: Sequence[RecordState] = STATE_CODES[:-1]
    at, dead_letters = HEAD.size, None
    try:
        if form == DEAD_LETTER_FORMAT:
            codes = STATE_CODES
            dead_letters, at = decode_dead_letters(data)
        runs = decode_runs(data, at, start_offset, codes)
    except (IndexError, struct.error, MalformedMessage) as e:
        raise InvalidShareState(f"truncated or malformed runs: {e}") from e
    if dead_letters is not None and dead_letters.size:
        check_outstanding(dead_letters, runs)
    snapshot = ShareSnapshot(start_offset, runs, dead_letters)
    return ShareState(version, snapshot)


def decode_dead_letters(data: Buffer) -> tuple[DeadLetterState | None, int]:
    """Decode the dead letters and return the position after them. Raises InvalidShareState, IndexError."""
    at = HEAD.size + 1
    if data[HEAD.size] == 0:
        return None, at
    if data[HEAD.size] != 1:
        raise InvalidShareState(f"unknown mark {data[HEAD.size]} of dead letters")
    producer_id, epoch, sequence, topic_id, partition, first, count = DEAD_LETTERS.unpack_from(data, at)
    if min(producer_id, epoch, sequence, partition, first, count) < 0 or count > MAX_BATCHED_LETTERS:
        raise InvalidShareState("a number of the dead letters is out of range")
    target = DeadLetterTarget(UUID(bytes=topic_id), partition)
    return DeadLetterState(producer_id, epoch, sequence, target, first, count), at + DEAD_LETTERS.size


def check_outstanding(state: DeadLetterState, runs: list[StateRun]) -> None:
    """Raise InvalidShareState unless all records of the outstanding batch await their letters."""
    found = [run for run in runs if run.first <= state.last and run.last >= state.first]
    is_covered = bool(found) and found[0].first <= state.first and found[-1].last >= state.last
    if not is_covered or any(run.state is not RecordState.ARCHIVING for run in found):
        raise InvalidShareState(f"offsets {state.first}-{state.last} have letters and do not await them")


def decode_runs(data: Buffer, at: int, start_offset: int, codes: Sequence[RecordState]) -> list[StateRun]:
    """Decode the runs from a position. Raises InvalidShareState, MalformedMessage and IndexError."""
    count, at = read_uvarint(data, at)
    if count > MAX_RUNS:
        raise InvalidShareState(f"{count} runs, more than {MAX_RUNS}")
    runs: list[StateRun] = []
    position = start_offset
    for _ in range(count):
        length, packed = data[at], data[at + 1]
        if length < ONE_BYTE_UVARINT and not length & 1 and packed < ONE_BYTE_UVARINT:
            length, at = length >> 1, at + 2
        else:
            length, at = read_varlong(data, at)
            packed, at = read_uvarint(data, at)
        code, delivery_count = packed & (1 << STATE_BITS) - 1, packed >> STATE_BITS
        if length <= 0 or code >= len(codes) or delivery_count > MAX_DELIVERY_COUNT:
            raise InvalidShareState(f"invalid run of {length} offsets at {position}")
        if position + length > MAX_OFFSET:
            raise InvalidShareState(f"a run ends past the largest offset, at {position + length}")
        runs.append(StateRun(position, position + length - 1, codes[code], delivery_count))
        position += length
    if at != len(data):
        raise InvalidShareState(f"{len(data) - at} bytes follow the runs")
    return runs
