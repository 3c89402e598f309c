"""What a share group must know of the records in a batch: their keys for order by key, and which pass its filter.

Used by `partition`, which asks for the contents of a batch once per batch; `decoding` reads them from the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from penstock.filter import RecordFilter
from penstock.wire.batch import BatchHeader
from penstock.wire.compression import DecompressedTooLarge
from penstock.wire.records import iterate_records
from penstock.wire.schema import MalformedMessage


class BatchKeys(NamedTuple):
    """The records of a batch that have keys: their offsets, in order, and a hash of each key.

    Two keys with one hash are delivered as one key: in order, and one record at a time.
    """

    offsets: array[int]
    hashes: array[int]

    def between(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, hash) of the records at the offsets, both inclusive."""
        begin, end = bisect_left(self.offsets, first), bisect_left(self.offsets, last + 1)
        return zip(self.offsets[begin:end], self.hashes[begin:end], strict=True)


class BatchContents(NamedTuple):
    """The keys of a batch, and the ranges (first, last) of offsets that pass the filter; None for all."""

    keys: BatchKeys
    matching: Sequence[tuple[int, int]] | None = None

    def matching_between(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of offsets that pass the filter, cut to the offsets, both inclusive."""
        if self.matching is None:
            yield first, last
            return
        for begin, end in self.matching:
            if end >= first and begin <= last:
                yield max(begin, first), min(end, last)


ReadContents = Callable[[], BatchContents | None]
"""Returns the contents of a batch; None if they are not known yet, or cannot be read."""


def no_keys() -> BatchKeys:
    """Return the keys of a batch without any."""
    return BatchKeys(array("q"), array("q"))


def all_contents() -> BatchContents:
    """Return contents without keys, all of which pass."""
    return BatchContents(no_keys())


class ContentsQuery(NamedTuple):
    """What to read of a batch. The keys are read only if the group needs them."""

    needs_keys: bool
    filter: RecordFilter | None


def decode_contents(batch: memoryview, header: BatchHeader, query: ContentsQuery, max_bytes: int) -> BatchContents:
    """Decode a batch. Raises DecompressedTooLarge.

    Records that cannot be decoded, which no client can read either, count as without key, and pass the filter.
    """
    keys, matching = no_keys(), list[int]()
    try:
        for record in iterate_records(batch, header, max_bytes):
            if query.needs_keys and record.key is not None:
                keys.offsets.append(record.offset)
                keys.hashes.append(hash(record.key))
            if query.filter is not None and query.filter.matches(record):
                matching.append(record.offset)
    except DecompressedTooLarge:
        raise
    except MalformedMessage:
        return BatchContents(keys)
    return BatchContents(keys, None if query.filter is None else list(adjacent(matching)))


def adjacent(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges (first, last) of adjacent offsets in a sorted list."""
    first = previous = None
    for offset in offsets:
        if previous is not None and offset == previous + 1:
            previous = offset
            continue
        if first is not None and previous is not None:
            yield first, previous
        first = previous = offset
    if first is not None and previous is not None:
        yield first, previous
