"""Dead letters as records of a topic, without I/O: what they say of a failure, and which of them were replayed.

`letter_replay` and the command line use it. Share groups and `DeadLetterQueue` write letters (KIP-1191).
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.client.errors import ClientError
from penstock.client.types import Headers, OffsetAndMetadata, TopicPartition
from penstock.wire import letter_headers as names
from penstock.wire.record import Record

MAX_METADATA_CHARS = 4_000
"""Upper bound of the metadata of a committed offset; brokers accept 4,096 bytes by default."""
KEPT = "kept="
RUN = "run="
RUN_TALLY = re.compile(r"([0-9a-z]{1,32}):(\d{1,19})")
RANGE = re.compile(r"(\d{1,19})(?:-(\d{1,19}))?")
NUMBER = re.compile(rb"\d{1,19}")


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter. `key`, `value` and `headers` are those of the original record.

    The original place is `topic`, `partition` and `source_offset`; -1 and empty texts if the headers do not say it.
    """

    place: TopicPartition
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    topic: str = ""
    partition: int = -1
    source_offset: int = -1
    group: str = ""
    delivery_count: int = -1
    reason: str = ""
    first_failure_ms: int = -1
    last_failure_ms: int = -1

    @property
    def has_content(self) -> bool:
        """Whether the letter has the original record, and can be replayed."""
        return self.key is not None or self.value is not None or bool(self.headers)


def parse_letter(place: TopicPartition, record: Record) -> Letter:
    """Return the letter that a record of a dead-letter topic is."""
    said = {name: value for name, value in record.headers if is_failure_header(name) and value is not None}
    return Letter(
        place,
        record.offset,
        record.timestamp_ms,
        record.key,
        record.value,
        [header for header in record.headers if not is_failure_header(header[0])],
        text(said.get(names.TOPIC)),
        number(said.get(names.PARTITION)),
        number(said.get(names.OFFSET)),
        text(said.get(names.GROUP)),
        number(said.get(names.DELIVERY_COUNT)),
        text(said.get(names.MESSAGE)),
        number(said.get(names.FIRST_FAILURE)),
        number(said.get(names.LAST_FAILURE)),
    )


def is_failure_header(name: str) -> bool:
    """Return whether a header is one that letters have in addition to those of their records."""
    return name.startswith((names.PREFIX, names.OWN_PREFIX))


def text(value: bytes | None) -> str:
    """Return a header's text."""
    return "" if value is None else value.decode(errors="replace")


def number(value: bytes | None) -> int:
    """Return a header's number; -1 if it is none."""
    return int(value) if value is not None and NUMBER.fullmatch(value) else -1


class LetterFilter(NamedTuple):
    """Selects letters. None and "" select all; `reason` is a part of the text, times are those of the letters."""

    topic: str = ""
    group: str = ""
    reason: str = ""
    since_ms: int | None = None
    until_ms: int | None = None

    def matches(self, letter: Letter) -> bool:
        """Return whether a letter is selected."""
        return (
            self.topic in ("", letter.topic)
            and self.group in ("", letter.group)
            and self.reason in letter.reason
            and (self.since_ms is None or letter.timestamp_ms >= self.since_ms)
            and (self.until_ms is None or letter.timestamp_ms < self.until_ms)
        )


class KeptRange(NamedTuple):
    """Adjacent offsets; `last` is inclusive."""

    first: int
    last: int


class RunTally(NamedTuple):
    """The number of letters of a partition that one run has replayed. `run`: 1 to 32 digits and small letters."""

    run: str
    replayed: int = 0


class ReplayProgressTooLarge(ClientError):
    """The letters that were left out do not fit into the metadata of the committed offset."""


class ReplayProgress:
    """Which letters of a partition were replayed: those below `next_offset`, except the kept ones.

    A replay with a filter keeps the letters that it leaves out for later replays. Letters are visited in the order of
    their offsets. `tally` counts the letters of the run that was the last to have a name.
    """

    def __init__(self, next_offset: int, kept: Iterable[KeptRange] = (), tally: RunTally | None = None) -> None:
        self.next_offset, self.tally = next_offset, tally
        self._earlier = deque(kept)
        self._kept: list[KeptRange] = []
        self._extends = False
        """Whether no letter was visited since the last kept one."""

    @classmethod
    def restore(cls, committed: OffsetAndMetadata | None, start_offset: int) -> ReplayProgress:
        """Return the progress that `commit` returned. Raises `ClientError` for other metadata."""
        if committed is None:
            return cls(start_offset)
        return cls(committed.offset, *decode_progress(committed.metadata))

    @property
    def first_offset(self) -> int:
        """The first offset that was not replayed."""
        return self._earlier[0].first if self._earlier else self.next_offset

    def visit(self, offset: int) -> bool:
        """Visit a letter. Returns whether it was not replayed yet; then call `keep` unless it is replayed."""
        while self._earlier and self._earlier[0].last < offset:
            self._earlier.popleft()
        is_open = offset >= self.next_offset or bool(self._earlier and self._earlier[0].first <= offset)
        self._was_extending, self._extends = self._extends, False
        return is_open

    def keep(self, offset: int) -> None:
        """Keep the visited letter for a later replay."""
        if self._was_extending:
            self._kept[-1] = self._kept[-1]._replace(last=offset)
        else:
            self._kept.append(KeptRange(offset, offset))
        self._extends = True

    def replayed(self, run: str) -> int:
        """Return the number of letters that a run has replayed."""
        return self.tally.replayed if self.tally is not None and self.tally.run == run else 0

    def count(self, run: str, letters: int) -> None:
        """Add to the letters that a run has replayed."""
        self.tally = RunTally(run, self.replayed(run) + letters)

    def commit(self, position: int) -> OffsetAndMetadata:
        """Return what to commit once all letters below `position` were visited. Raises `ReplayProgressTooLarge`."""
        rest = [KeptRange(max(each.first, position), each.last) for each in self._earlier if each.last >= position]
        metadata = encode_progress([*self._kept, *rest], self.tally)
        if len(metadata) > MAX_METADATA_CHARS:
            raise ReplayProgressTooLarge(
                "too many letters are left out in between; replay with a wider filter, or purge some"
            )
        return OffsetAndMetadata(max(self.next_offset, position), metadata)


def encode_progress(ranges: Sequence[KeptRange], tally: RunTally | None = None) -> str:
    """Return progress as text, such as `kept=5-7,9;run=a1:3`; empty without ranges and tally."""
    parts = (str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    fields = [f"{KEPT}{','.join(parts)}"] if ranges else []
    return ";".join([*fields, f"{RUN}{tally.run}:{tally.replayed}"] if tally is not None else fields)


def decode_progress(metadata: str) -> tuple[list[KeptRange], RunTally | None]:
    """Return the ranges and the tally of a text. Raises `ClientError` if they are not ascending ranges, or if the text
    has another format."""
    kept, separator, last = metadata.rpartition(";")
    if not last.startswith(RUN):
        return decode_ranges(metadata), None
    found = RUN_TALLY.fullmatch(last, len(RUN))
    if found is None or (separator and not kept):
        raise ClientError(f'the group has committed offsets of another kind, with metadata "{metadata[:100]}"')
    return decode_ranges(kept), RunTally(found[1], int(found[2]))


def decode_ranges(metadata: str) -> list[KeptRange]:
    """Return the ranges of a text. Raises `ClientError` if they are not ascending ranges."""
    ranges: list[KeptRange] = []
    for part in metadata.removeprefix(KEPT).split(",") if metadata else ():
        found = RANGE.fullmatch(part)
        if not metadata.startswith(KEPT) or found is None:
            raise ClientError(f'the group has committed offsets of another kind, with metadata "{metadata[:100]}"')
        ranges.append(KeptRange(int(found[1]), int(found[2] or found[1])))
    edges = [offset for each in ranges for offset in each]
    if any(first > last for first, last in ranges) or edges != sorted(edges):
        raise ClientError(f'the group has committed offsets that are not ascending: "{metadata[:100]}"')
    return ranges
