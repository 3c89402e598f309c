"""Transactions in a compacted log: compaction removes aborted records and treats committed ones as others."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from log_kit import SMALL, START_MS, HandClock, any_seed, append, note_seed, open_log, opened, read_all, settle
from memory_files import MemoryFiles

from penstock.config.topic import DAY_MS, FOREVER
from penstock.log.partition_log import PartitionLog
from penstock.wire.batch import TRANSACTIONAL
from penstock.wire.control_batch import Marker, build_marker, parse_marker
from penstock.wire.records import Record, build_batch, iterate_batches, iterate_records

COMPACT = replace(SMALL, cleanup_delete=False, cleanup_compact=True, min_cleanable_dirty_ratio=0.0)
NEVER = replace(COMPACT, min_compaction_lag_ms=FOREVER // 2)
PLAIN = -1


def put(log: PartitionLog, producer: int, key: bytes, value: bytes | None) -> int:
    """Append a record, in a transaction unless the producer is `PLAIN`; return its offset."""
    fields = {} if producer == PLAIN else {"producer_id": producer, "producer_epoch": 0, "attributes": TRANSACTIONAL}
    records = [Record(key=key, value=value, timestamp_ms=START_MS)]
    append(log, bytearray(build_batch(records, **fields)))  # type: ignore[arg-type]
    return log.end_offset - 1


def end(log: PartitionLog, producer: int, committed: bool = True) -> None:
    append(log, build_marker(Marker(producer, 0, committed, 0), START_MS))


def data_of(log: PartitionLog) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Return key and value of all records except markers, by offset."""
    batches = [(header, batch) for header, batch in iterate_batches(read_all(log)) if not header.is_control]
    records = [record for header, batch in batches for record in iterate_records(batch, header, 1 << 20)]
    return {r.offset: (r.key, r.value) for r in records}


def committed_view(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    """Return the last value of each key, as a read_committed reader sees it."""
    waiting: dict[int, list[Record]] = {}
    seen: list[Record] = []
    for header, batch in iterate_batches(read_all(log)):
        if header.is_control:
            marker = parse_marker(header, batch)
            assert marker is not None
            records = waiting.pop(header.producer_id, [])
            seen += records if marker.committed else []
            continue
        records = list(iterate_records(batch, header, 1 << 20))
        if header.is_transactional:
            waiting.setdefault(header.producer_id, []).extend(records)
        else:
            seen += records
    return {r.key: r.value for r in sorted(seen, key=lambda r: r.offset)}


def roll(log: PartitionLog) -> None:
    """Append until all earlier records are in sealed segments."""
    count = len(log.segments)
    while len(log.segments) == count:
        put(log, PLAIN, b"filler", b"f" * 100)


async def test_a_log_that_only_transactions_write_to_shrinks() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, NEVER)
        for number in range(300):
            put(log, 7, b"one key", b"value %d " % number * 20)
            end(log, 7)
        await log.flush()
        before, view = log.size_bytes, committed_view(log)
        log.reconfigure(COMPACT)
        await settle(directory)
        assert log.size_bytes < before / 2
        assert len([offset for offset in data_of(log) if offset < log.compacted_until]) <= 1
        assert committed_view(log) == view


async def test_what_was_aborted_goes_and_makes_nothing_go() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, NEVER)
        kept = put(log, 7, b"k", b"committed")
        end(log, 7)
        for value in (b"aborted", None):
            put(log, 7, b"k", value)
            put(log, 8, b"other", b"aborted too")
            end(log, 7, committed=False)
            end(log, 8, committed=False)
        also_kept = put(log, 8, b"other", b"of the same producer")
        end(log, 8)
        roll(log)
        log.reconfigure(COMPACT)
        await settle(directory)
        assert directory.compactor.compactions
        below = {o: kv for o, kv in data_of(log).items() if kv[0] != b"filler"}
        assert below == {kept: (b"k", b"committed"), also_kept: (b"other", b"of the same producer")}


async def test_a_transaction_whose_end_is_not_known_yet_is_left_for_another_time() -> None:
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, NEVER)
        put(log, 7, b"a", b"1")
        end(log, 7)
        last = put(log, PLAIN, b"a", b"2")
        undecided = put(log, 7, b"a", b"3")
        put(log, 8, b"b", b"4")
        end(log, 8)
        roll(log)
        log.reconfigure(COMPACT)
        await settle(directory)
        assert log.compacted_until == undecided
        assert [o for o, (key, _) in data_of(log).items() if key == b"a"] == [last, undecided]
        end(log, 7)
        roll(log)
        await settle(directory)
        assert log.compacted_until > undecided
        assert [o for o, (key, _) in data_of(log).items() if key == b"a"] == [undecided]


async def test_a_transaction_with_more_keys_than_fit_into_memory_is_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.compaction.compactor.MAX_KEYS_IN_MEMORY", 10)
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, NEVER)
        for number in range(120):
            put(log, 7, b"key %d" % (number % 40), b"value %d" % number)
        end(log, 7)
        roll(log)
        view = committed_view(log)
        log.reconfigure(COMPACT)
        await settle(directory)
        assert log.compacted_until == log.segments[-2].end_offset
        assert committed_view(log) == view
        assert len([o for o, kv in data_of(log).items() if kv[0] != b"filler"]) == 40


async def test_a_deletion_in_a_transaction_goes_after_delete_retention_like_others() -> None:
    clock = HandClock()
    async with opened(MemoryFiles(), "/data", clock) as directory:
        log = open_log(directory, COMPACT)
        put(log, 7, b"gone", b"value")
        end(log, 7)
        tombstone = put(log, 7, b"gone", None)
        end(log, 7)

        async def compact() -> list[int]:
            roll(log)
            await settle(directory)
            return [offset for offset, (key, _) in data_of(log).items() if key == b"gone"]

        assert await compact() == [tombstone]
        clock.advance(DAY_MS - 1000)
        assert await compact() == [tombstone]
        clock.advance(2000)
        assert await compact() == []


async def test_a_deletion_for_which_nothing_was_dropped_stays() -> None:
    """A log compacted by a release that ignored outcomes may still contain earlier values of the key."""
    clock = HandClock()
    async with opened(MemoryFiles(), "/data", clock) as directory:
        log = open_log(directory, NEVER)
        put(log, 7, b"gone", b"value")
        end(log, 7)
        tombstone = put(log, 7, b"gone", None)
        end(log, 7)
        roll(log)
        log.compacted_until = log.segments[-1].base_offset
        log.reconfigure(COMPACT)
        for _ in range(3):
            clock.advance(2 * DAY_MS)
            roll(log)
            await settle(directory)
        assert directory.compactor.compactions
        assert tombstone in data_of(log)


@pytest.mark.parametrize("max_keys", [5, 1000])
async def test_readers_of_committed_records_see_the_same_before_and_after(
    monkeypatch: pytest.MonkeyPatch, max_keys: int
) -> None:
    monkeypatch.setattr("penstock.log.compaction.compactor.MAX_KEYS_IN_MEMORY", max_keys)
    seed = any_seed()
    note_seed(seed)
    rng = random.Random(seed)
    async with opened(MemoryFiles(), "/data") as directory:
        log = open_log(directory, COMPACT)
        open_now: dict[int, list[int]] = {}
        aborted: set[int] = set()
        for step in range(600):
            producer = rng.choice([PLAIN, PLAIN, 1, 2, 3])
            if producer in open_now and rng.random() < 0.4:
                committed = rng.random() < 0.6
                end(log, producer, committed)
                aborted |= set() if committed else set(open_now[producer])
                del open_now[producer]
            else:
                value = None if rng.random() < 0.1 else b"value %d" % step
                offset = put(log, producer, b"key %d" % rng.randrange(12), value)
                if producer != PLAIN:
                    open_now.setdefault(producer, []).append(offset)
            if step % 150 == 149:
                view = committed_view(log)
                await settle(directory)
                assert committed_view(log) == view, f"seed {seed}, step {step}"
        assert log.compacted_until > 0
        undecided = min((offsets[0] for offsets in open_now.values()), default=log.end_offset)
        assert log.compacted_until <= max(undecided, log.segments[-2].end_offset)
        below = {offset: key for offset, (key, _) in data_of(log).items() if offset < log.compacted_until}
        assert not aborted & below.keys(), f"seed {seed}: aborted records stay"
        assert len(set(below.values())) == len(below), f"seed {seed}: a key stays twice"
