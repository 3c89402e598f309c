"""Repair replaces a damaged batch by one that every client skips, and changes nothing else in the directory."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from log_kit import TOPIC, append, batch_of, open_log, opened

from penstock.client.positions import PartitionState
from penstock.client.types import TopicPartition
from penstock.log.dump import dump
from penstock.log.opening import DirectoryInUse
from penstock.log.repair import RepairError, blank_batch, cut_batch
from penstock.runtime.disk import OsFiles
from penstock.wire.batch import HEADER, HEADER_SIZE, LENGTH_OVERHEAD, checksum, read_header
from penstock.wire.compression import Codec
from penstock.wire.control_batch import parse_marker
from penstock.wire.records import iterate_batches, iterate_records
from penstock.wire.schema import MalformedMessage


def garbage(size: int, count: int = 3, codec: int = Codec.GZIP) -> bytearray:
    """Return a batch with `size` bytes of invalid records under a matching CRC."""
    header = read_header(batch_of(1))._replace(
        batch_length=HEADER_SIZE - LENGTH_OVERHEAD + size,
        attributes=codec,
        last_offset_delta=count - 1,
        record_count=count,
        producer_id=77,
        producer_epoch=0,
        base_sequence=0,
    )
    batch = bytearray(HEADER.pack(*header) + b"g" * size)
    struct.pack_into(">I", batch, 17, checksum(memoryview(batch), 0, len(batch)))
    return batch


async def write(home: Path, size: int) -> Path:
    """Create a log whose second batch (offsets 3 to 5) is invalid; return the path of its only segment."""
    async with opened(OsFiles(), str(home)) as directory:
        log = open_log(directory)
        append(log, batch_of(3))
        append(log, garbage(size))
        append(log, batch_of(2))
        await log.flush()
        await directory.maintenance.checkpoint(log)
    return home / f"{TOPIC}-0" / "00000000000000000000.log"


@pytest.mark.integration
@pytest.mark.parametrize("size", [7, 9, 65, 300])
async def test_consumers_get_past_a_batch_that_was_cut_out_and_the_log_opens(tmp_path: Path, size: int) -> None:
    path = await write(tmp_path / "data", size)
    before = path.read_bytes()
    _, (header, batch), _ = iterate_batches(before)
    with pytest.raises(MalformedMessage, match="damaged gzip data"):
        list(iterate_records(batch, header, 1 << 20))
    cut_batch(str(path), 4, str(tmp_path / "saved"))
    after = path.read_bytes()
    assert len(after) == len(before)
    state = PartitionState(TopicPartition(TOPIC, 0))
    state.seek(0)
    state.append_batches(memoryview(after), None, committed_only=True)
    found = [record.offset for record in state.read_records(100)]
    assert found == ([0, 1, 2, 5, 6, 7] if size < 9 else [0, 1, 2, 6, 7])
    assert (tmp_path / "saved").read_bytes() == before[len(batch_of(3)) : -len(batch_of(2))]
    assert dump([str(tmp_path / "data")], verify=True, records=True, json=False, out=(tmp_path / "o").open("w")) == 0
    async with opened(OsFiles(), str(tmp_path / "data")) as directory:
        log = open_log(directory)
        assert log.end_offset == 8


@pytest.mark.parametrize("last_offset_delta", [0, 63, 64, 100_000])
def test_a_blank_batch_has_the_size_of_the_old_one_and_is_sound(last_offset_delta: int) -> None:
    smallest = 7 + (last_offset_delta > 63) + (last_offset_delta > 8191)
    for size in (*range(smallest, 140), 8_191, 8_192, 8_193, 8_205, 20_000):
        header = read_header(garbage(size, 3))._replace(last_offset_delta=last_offset_delta)
        blank = memoryview(blank_batch(header))
        made = read_header(blank)
        assert len(blank) == HEADER_SIZE + size
        assert made.crc == checksum(blank, 0, len(blank))
        assert (made.last_offset_delta, made.producer_id) == (last_offset_delta, -1)
        (record,) = iterate_records(blank, made, 1 << 20)
        assert record.offset == made.last_offset
        assert made.is_control == (size >= smallest + 2)
        assert not made.is_control or parse_marker(made, blank) is None
    with pytest.raises(RepairError, match="too small"):
        blank_batch(read_header(garbage(smallest - 1, 3))._replace(last_offset_delta=last_offset_delta))


async def test_what_is_sound_small_or_not_there_is_not_cut(tmp_path: Path) -> None:
    path = await write(tmp_path / "data", 6)
    before = path.read_bytes()
    saved = str(tmp_path / "saved")
    for offset, why in ((0, "is valid"), (99, "no batch contains it"), (3, "too small")):
        with pytest.raises(RepairError, match=why):
            cut_batch(str(path), offset, saved)
    with pytest.raises(RepairError, match="not a segment file"):
        cut_batch(str(path.with_suffix(".index")), 3, saved)
    assert path.read_bytes() == before
    assert not Path(saved).exists()


async def test_the_saved_bytes_of_another_batch_are_not_overwritten(tmp_path: Path) -> None:
    path = await write(tmp_path / "data", 50)
    before = path.read_bytes()
    (tmp_path / "saved").write_bytes(b"older")
    with pytest.raises(FileExistsError):
        cut_batch(str(path), 3, str(tmp_path / "saved"))
    assert path.read_bytes() == before


async def test_a_directory_that_a_broker_uses_is_left_alone(tmp_path: Path) -> None:
    path = await write(tmp_path / "data", 50)
    async with opened(OsFiles(), str(tmp_path / "data")):
        with pytest.raises(DirectoryInUse):
            cut_batch(str(path), 3, str(tmp_path / "saved"))


async def test_the_dump_names_damaged_batches_and_the_command(tmp_path: Path) -> None:
    path = await write(tmp_path / "data", 50)
    for records in (True, False):
        with (tmp_path / "out").open("w") as out:
            assert dump([str(path)], verify=True, records=records, json=False, out=out) == 1
        text = (tmp_path / "out").read_text()
        assert "records of offsets 3 to 5 are damaged" in text
        assert f"penstock log cut {path} --offset 3" in text
