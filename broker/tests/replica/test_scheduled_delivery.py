"""Led partitions of topics with scheduled records: produce, delivery, restarts, cancelling, retention, failures."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path

import pytest
from log_kit import HandClock
from replica_kit import DataPath, accepted, batch_of, opened_data_path, until

from penstock.replica.acceptance import Appended
from penstock.replica.leader import Leader
from penstock.replica.scheduled_delivery import LeaderSchedule
from penstock.wire.batch import CRC, CRC_OFFSET, TRANSACTIONAL, checksum
from penstock.wire.errors import ErrorCode
from penstock.wire.record import Header, Record
from penstock.wire.records import build_batch, iterate_batches, iterate_records
from penstock.wire.scheduled_batch import CANCEL, DELIVER_AFTER, DELIVER_AT, ORIGIN

SCHEDULED = {"delivery_schedule_enable": "true"}
DAY_MS = 86_400_000


def schedule_of(leader: Leader) -> LeaderSchedule:
    schedule = leader.schedule
    assert schedule is not None
    return schedule


async def is_loaded(leader: Leader) -> LeaderSchedule:
    """Wait until the leader has read its log."""
    schedule = schedule_of(leader)
    await until(lambda: schedule.index is not None)
    return schedule


def after(ms: int) -> Header:
    return (DELIVER_AFTER, b"%d" % ms)


def record(value: str, *headers: Header, key: bytes | None = b"k") -> Record:
    return Record(key=key, value=value.encode(), headers=headers)


def append(leader: Leader, *records: Record, producer: tuple[int, int, int] = (-1, -1, -1), codec: int = 0) -> Appended:
    batch = build_batch(
        [Record(key=r.key, value=r.value, headers=r.headers, timestamp_ms=leader.clock.wall_ms()) for r in records],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        codec=codec,
    )
    return leader.append(memoryview(bytearray(batch)), all_in_sync=True)


def appended(leader: Leader, *records: Record, producer: tuple[int, int, int] = (-1, -1, -1), codec: int = 0) -> int:
    """Append a batch that is accepted, and return its offset."""
    done = append(leader, *records, producer=producer, codec=codec)
    assert not done.error, done
    return done.base_offset


def read_all(leader: Leader) -> list[Record]:
    """Return what consumers read: the records that are in no control batch."""
    found, offset, log = [], leader.log.start_offset, leader.log
    while (part := log.read(offset, 1 << 20, log.end_offset, at_least_one=True)) is not None:
        data = part.file.read_at(part.position, part.size)
        part.release()
        for header, batch in iterate_batches(data):
            offset = header.last_offset + 1
            if not header.is_control:
                found += iterate_records(batch, header, 1 << 20)
    return found


def values(leader: Leader) -> list[str]:
    return [(r.value or b"").decode() for r in read_all(leader)]


async def delivered(leader: Leader, expected: Sequence[str]) -> None:
    """Wait until consumers can read exactly these records."""
    await until(lambda: len(values(leader)) >= len(expected))
    assert values(leader) == list(expected)


async def pass_time(path: DataPath, leader: Leader, by_ms: int) -> None:
    """Move the clock, let the timer fire, and wait until the leader has delivered what is due."""
    path.clock.advance(by_ms)
    path.replicas.delayed.on_timer()
    await until(lambda: not schedule_of(leader).is_delivering)


async def test_a_plain_topic_has_no_schedule(path: DataPath) -> None:
    leader = await path.partition()
    appended(leader, record("a", after(1_000)))
    assert leader.schedule is None
    assert values(leader) == ["a"]


async def test_a_record_is_delivered_when_it_is_due(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    schedule = await is_loaded(leader)
    now_ms = path.clock.wall_ms()
    appended(leader, record("later", (DELIVER_AT, b"%d" % (now_ms + 120_000)), key=b"x"))
    appended(leader, record("sooner", after(60_000), key=b"y"))
    appended(leader, record("plain"))
    assert (schedule.waiting, schedule.next_due_ms) == (2, now_ms + 60_000)
    await pass_time(path, leader, 59_999)
    assert values(leader) == ["plain"]
    await pass_time(path, leader, 1)
    assert values(leader) == ["plain", "sooner"]
    await pass_time(path, leader, 60_000)
    assert values(leader) == ["plain", "sooner", "later"]
    assert (schedule.waiting, schedule.next_due_ms) == (0, None)
    last = read_all(leader)[-1]
    assert (last.key, last.headers[-1]) == (b"x", (ORIGIN, b"0"))
    assert last.headers[0][0] == DELIVER_AT
    assert last.timestamp_ms == path.clock.wall_ms()


async def test_records_of_one_batch_are_delivered_at_times_of_their_own_and_the_others_at_once(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    schedule = await is_loaded(leader)
    done = append(
        leader,
        record("a"),
        record("c", after(2_000)),
        record("past", (DELIVER_AT, b"1")),
        record("b", after(1_000)),
        codec=1,
    )
    assert (done.error, done.base_offset) == (0, 0)
    assert done.required_offset == leader.log.end_offset, "the acknowledgement covers what is delivered at once"
    assert values(leader) == ["a", "past"]
    assert schedule.waiting == 2
    await pass_time(path, leader, 2_000)
    assert values(leader) == ["a", "past", "b", "c"]


async def test_records_that_are_due_together_keep_their_order(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    await is_loaded(leader)
    due_ms = path.clock.wall_ms() + 90_000
    for number in range(50):
        appended(leader, *(record(f"{number}-{i}", (DELIVER_AT, b"%d" % due_ms)) for i in range(3)))
    await pass_time(path, leader, 90_000)
    assert values(leader) == [f"{number}-{i}" for number in range(50) for i in range(3)]


async def test_a_repeated_batch_is_not_scheduled_twice(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    schedule = await is_loaded(leader)
    first = append(leader, record("a", after(1_000)), record("b"), producer=(7, 0, 0))
    again = append(leader, record("a", after(1_000)), record("b"), producer=(7, 0, 0))
    assert again.base_offset == first.base_offset
    assert append(leader, record("c", after(1_000)), producer=(7, 0, 5)).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    appended(leader, record("c", after(1_000)), producer=(7, 0, 2))
    assert schedule.waiting == 2
    await pass_time(path, leader, 1_000)
    assert values(leader) == ["b", "a", "c"]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_restart_keeps_what_waits_and_delivers_nothing_twice(tmp_path: Path, clean: bool) -> None:
    clock = HandClock()
    async with opened_data_path(tmp_path, clock=clock, clean=clean) as path:
        leader = await path.partition(**SCHEDULED)
        await is_loaded(leader)
        appended(leader, *(record(f"{i}", after(i * 1_000), key=b"%d" % i) for i in range(6)), producer=(7, 0, 0))
        appended(leader, record("", (CANCEL, None), key=b"4"))
        await pass_time(path, leader, 2_500)
        assert values(leader) == ["0", "1", "2"]
        await path.flushed()
    async with opened_data_path(tmp_path, clock=clock) as path:
        found = path.replicas.find("t", 0)
        assert found is not None
        schedule = await is_loaded(found)
        assert schedule.waiting == 2
        again = append(found, *(record(f"{i}", after(i * 1_000), key=b"%d" % i) for i in range(6)), producer=(7, 0, 0))
        assert again.base_offset == 0, "the producer state survives too"
        await pass_time(path, found, 10_000)
        assert values(found) == ["0", "1", "2", "3", "5"]


async def test_records_that_arrive_while_the_log_is_read_are_not_lost(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    assert schedule_of(leader).index is None
    appended(leader, record("a", after(1_000)), record("now"))
    assert values(leader) == ["now"]
    await asyncio.sleep(0)  # the thread now reads the log as it was
    appended(leader, record("b", after(1_000)), record("also now"))
    schedule = await is_loaded(leader)
    assert schedule.waiting == 2
    await pass_time(path, leader, 1_000)
    assert values(leader) == ["now", "also now", "a", "b"]


async def test_a_record_that_is_cancelled_while_it_is_read_is_not_delivered(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    schedule = await is_loaded(leader)
    appended(leader, record("a", after(1_000), key=b"a"), record("b", after(1_000), key=b"b"))
    path.clock.advance(1_000)
    path.replicas.delayed.on_timer()
    await asyncio.sleep(0)
    assert schedule.index is not None
    assert len(schedule.index.taken) == 2
    appended(leader, record("", (CANCEL, b""), key=b"a"))
    await until(lambda: not schedule.is_delivering)
    assert values(leader) == ["b"]
    assert schedule.waiting == 0


async def test_cancelling_drops_all_earlier_records_with_the_key(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    schedule = await is_loaded(leader)
    appended(leader, record("a1", after(1_000), key=b"a"), record("b", after(1_000), key=b"b"))
    appended(leader, record("a2", after(90_000), key=b"a"), record("none", after(1_000), key=None))
    appended(leader, record("ignored", (CANCEL, b"any"), key=b"a"), record("a3", after(1_000), key=b"a"))
    assert schedule.waiting == 3
    await pass_time(path, leader, 100_000)
    assert values(leader) == ["b", "none", "a3"]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([(DELIVER_AT, b"12x")], "decimal digits"),
        ([(DELIVER_AT, b"-1")], "decimal digits"),
        ([(DELIVER_AFTER, b"")], "decimal digits"),
        ([(DELIVER_AFTER, None)], "is null"),
        ([(DELIVER_AFTER, b"9" * 20)], "decimal digits"),
        ([(DELIVER_AFTER, b"%d" % (30 * DAY_MS + 1))], "30 days"),
        ([(DELIVER_AT, b"9" * 19)], "30 days"),
        ([(DELIVER_AT, b"1"), (DELIVER_AFTER, b"1")], "several"),
    ],
)
async def test_a_time_that_cannot_be_kept_is_refused_with_the_record_and_the_reason(
    path: DataPath, headers: list[Header], reason: str
) -> None:
    leader = await path.partition(**SCHEDULED)
    done = append(leader, record("good", after(1)), record("bad", *headers))
    assert done.error == ErrorCode.INVALID_RECORD
    ((index, message),) = done.record_errors
    assert index == 1
    assert message is not None
    assert reason in message
    assert leader.log.end_offset == 0


async def test_a_transaction_with_a_time_is_refused(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    for attributes, header in ((TRANSACTIONAL, after(1)), (TRANSACTIONAL, (CANCEL, b""))):
        batch = build_batch(
            [Record(key=b"k", headers=(header,), timestamp_ms=path.clock.wall_ms())],
            producer_id=7,
            producer_epoch=0,
            base_sequence=0,
            attributes=attributes,
        )
        done = leader.append(memoryview(bytearray(batch)), all_in_sync=True, verified=True)
        assert done.error == ErrorCode.INVALID_RECORD
        assert "without a transaction" in (done.message or "")
    assert leader.log.end_offset == 0


async def test_a_copy_of_a_delivered_record_is_delivered_at_once_unless_it_gets_a_new_time(
    path: DataPath,
) -> None:
    leader = await path.partition(**SCHEDULED)
    schedule = await is_loaded(leader)
    appended(leader, record("original", after(1_000)))
    await pass_time(path, leader, 1_000)
    (original,) = read_all(leader)
    end = leader.log.end_offset
    appended(leader, record("copy", *original.headers))
    assert (schedule.waiting, leader.log.end_offset) == (0, end + 1), "the copy is stored as it is"
    appended(leader, record("again", *original.headers, after(1_000)))
    appended(leader, record("refused once", (DELIVER_AFTER, b"x"), (ORIGIN, b"1")))
    assert (schedule.waiting, values(leader)) == (1, ["original", "copy", "refused once"])
    await pass_time(path, leader, 1_000)
    assert values(leader) == ["original", "copy", "refused once", "again"]
    assert [value for name, value in read_all(leader)[-1].headers if name == ORIGIN] == [b"0", b"%d" % (end + 1)]


async def test_copies_of_delivered_records_may_be_in_a_transaction(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    batch = build_batch(
        [Record(key=b"k", headers=(after(60_000), (ORIGIN, b"0")), timestamp_ms=path.clock.wall_ms())],
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL,
    )
    assert leader.append(memoryview(bytearray(batch)), all_in_sync=True, verified=True).error == ErrorCode.NONE


async def test_a_batch_that_is_too_large_uncompressed_is_refused(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    done = append(leader, record("x" * (1 << 20), after(1)), codec=1)
    assert done.error == ErrorCode.MESSAGE_TOO_LARGE
    assert "send smaller batches" in (done.message or "")


async def test_damaged_records_are_refused(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED, penstock_record_validation="none")
    batch = bytearray(build_batch([record("a", after(1)), record("b")]))
    batch[-1] = 0x7F
    CRC.pack_into(batch, CRC_OFFSET, checksum(memoryview(batch), 0, len(batch)))
    assert leader.append(memoryview(batch), all_in_sync=True).error == ErrorCode.INVALID_RECORD


async def test_cancelling_without_a_key_is_refused(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    assert append(leader, record("x", (CANCEL, b""), key=None)).error == ErrorCode.INVALID_RECORD


async def test_the_longest_time_ahead_is_accepted(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    await is_loaded(leader)
    appended(leader, record("a", after(30 * DAY_MS)))
    await pass_time(path, leader, 30 * DAY_MS - 1)
    assert values(leader) == []
    await pass_time(path, leader, 1)
    assert values(leader) == ["a"]


async def test_a_wall_clock_that_is_set_does_not_lose_or_repeat_records(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    await is_loaded(leader)
    appended(leader, record("a", after(5_000)))
    await pass_time(path, leader, 10 * DAY_MS)
    assert values(leader) == ["a"]
    await pass_time(path, leader, -10 * DAY_MS)
    appended(leader, record("b", after(5_000)))
    await pass_time(path, leader, 4_999)
    assert values(leader) == ["a"]
    await pass_time(path, leader, 1)
    assert values(leader) == ["a", "b"]


async def test_scheduled_records_outlive_their_segment(path: DataPath) -> None:
    settings = {"retention_ms": "600000", "segment_bytes": "4096", "segment_ms": "60000"}
    leader = await path.partition(**SCHEDULED, **settings)
    schedule = await is_loaded(leader)
    appended(leader, record("kept", after(DAY_MS), key=b"kept"), record("kept too", after(DAY_MS)))
    appended(leader, record("cancelled", after(DAY_MS), key=b"c"))
    first_end = leader.log.end_offset
    for _ in range(200):
        accepted(leader, batch_of(10, timestamp_ms=path.clock.wall_ms()))
        path.clock.advance(1_000)
    await path.flushed()
    assert leader.log.start_offset == 0
    path.clock.advance(3_600_000)
    path.log_dir.retention.apply(leader.log)
    assert leader.log.start_offset == 0, "records wait in the oldest segment"
    assert schedule.index is not None
    copying = asyncio.create_task(schedule.copy_next(schedule.index))
    await asyncio.sleep(0)
    appended(leader, record("", (CANCEL, b""), key=b"c"))
    assert await copying
    await pass_time(path, leader, 1)
    path.log_dir.retention.apply(leader.log)
    assert leader.log.start_offset >= first_end
    assert schedule.waiting == 2
    await pass_time(path, leader, DAY_MS)
    delivered_now = [r for r in read_all(leader) if r.headers]
    assert [(r.value, r.headers[-1]) for r in delivered_now] == [
        (b"kept", (ORIGIN, b"0")),
        (b"kept too", (ORIGIN, b"1")),
    ]


async def test_deleting_records_drops_the_scheduled_ones_too(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    schedule = await is_loaded(leader)
    appended(leader, record("a", after(1_000)))
    appended(leader, record("b", after(1_000)))
    await path.flushed()
    await leader.log.delete_records_before(1)
    assert schedule.waiting == 1
    await pass_time(path, leader, 1_000)
    assert values(leader) == ["b"]


async def test_a_full_disk_delays_the_delivery(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    await is_loaded(leader)
    appended(leader, record("a", after(1_000)))
    await path.flushed()
    path.files.fail("append", errno.ENOSPC)
    await pass_time(path, leader, 1_000)
    assert values(leader) == []
    path.files.heal()
    await pass_time(path, leader, 1_000)
    assert values(leader) == ["a"]


async def test_the_setting_stops_and_resumes_the_delivery(path: DataPath) -> None:
    leader = await path.partition(**SCHEDULED)
    await is_loaded(leader)
    appended(leader, record("a", after(1_000)))
    await path.alter("t", "delivery.schedule.enable", "false")
    assert leader.schedule is None
    path.clock.advance(5_000)
    path.replicas.delayed.on_timer()
    await asyncio.sleep(0)
    assert values(leader) == []
    await path.alter("t", "delivery.schedule.enable", "true")
    await is_loaded(leader)
    await delivered(leader, ["a"])
