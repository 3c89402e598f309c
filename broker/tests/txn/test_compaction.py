"""Compaction and transactions: aborted records never replace committed ones."""

from __future__ import annotations

from pathlib import Path

from penstock.log.compaction.cleaner import clean_segments, cleaned_name
from penstock.log.compaction.job import CompactionJob, CompactionSource
from penstock.log.segment import Segment
from penstock.runtime.disk import OsFiles
from penstock.wire.batch import TRANSACTIONAL, stamp
from penstock.wire.control_batch import Marker, build_marker
from penstock.wire.record import Record
from penstock.wire.records import build_batch, iterate_batches, iterate_records


def batch(offset: int, key: bytes, value: bytes | None, *, transactional: bool) -> bytes:
    return build_batch(
        [Record(key=key, value=value, timestamp_ms=1, offset=offset)],
        base_offset=offset,
        producer_id=7 if transactional else -1,
        producer_epoch=0 if transactional else -1,
        base_sequence=offset if transactional else -1,
        attributes=TRANSACTIONAL if transactional else 0,
    )


def marker(offset: int, *, committed: bool) -> bytes:
    batch = build_marker(Marker(7, 0, committed, 0), 1)
    stamp(batch, 0, offset, 0)
    return bytes(batch)


def kept(home: Path, batches: list[bytes]) -> list[tuple[bytes | None, bytes | None]]:
    files, directory = OsFiles(), str(home)
    segment = Segment(directory, 0)
    data = b"".join(batches)
    Path(segment.path).write_bytes(data)
    job = CompactionJob(
        "j", directory, [CompactionSource(0, len(data), len(batches))], 0, 10**9, 0, 1 << 20, 4096, 1000
    )
    result = clean_segments(files, job)
    path = cleaned_name(segment.path, "j") if result.rows else segment.path
    found = []
    for header, one in iterate_batches(Path(path).read_bytes()):
        if not header.is_control:
            found += [(r.key, r.value) for r in iterate_records(one, header, 1 << 20)]
    return found


def test_a_record_of_a_transaction_that_is_not_decided_does_not_replace_an_earlier_one(tmp_path: Path) -> None:
    batches = [batch(0, b"k", b"committed", transactional=False), batch(1, b"k", b"aborted?", transactional=True)]
    assert kept(tmp_path, batches) == [(b"k", b"committed"), (b"k", b"aborted?")]


def test_a_deletion_in_a_transaction_that_is_not_decided_stays_with_what_it_deletes(tmp_path: Path) -> None:
    batches = [batch(0, b"k", b"old", transactional=False), batch(1, b"k", None, transactional=True)]
    assert kept(tmp_path, batches) == [(b"k", b"old"), (b"k", None)]


def test_a_later_record_replaces_one_of_a_transaction(tmp_path: Path) -> None:
    batches = [
        batch(0, b"k", b"in a transaction", transactional=True),
        marker(1, committed=True),
        batch(2, b"k", b"later", transactional=False),
        batch(3, b"other", b"x", transactional=True),
    ]
    assert kept(tmp_path, batches) == [(b"k", b"later"), (b"other", b"x")]
