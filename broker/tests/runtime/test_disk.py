"""Guarantees of the real file system on which the log relies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.runtime import linux
from penstock.runtime.disk import OsFiles


def test_appends_go_to_the_end_also_after_other_writes_and_truncation(tmp_path: Path) -> None:
    file = OsFiles().open(str(tmp_path / "f"), create=True)
    file.append(b"abc")
    file.append(memoryview(bytearray(b"defg")))
    file.write_at(1, b"XY")
    file.append(b"h")
    assert file.read_at(0, 100) == b"aXYdefgh"
    file.truncate(3)
    file.append(b"!")
    assert (file.read_at(0, 100), file.size()) == (b"aXY!", 4)
    file.sync()
    file.close()
    again = OsFiles().open(str(tmp_path / "f"))
    again.append(b"?")
    assert again.read_at(2, 100) == b"Y!?"
    again.close()


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OsFiles().open(str(tmp_path / "f"), create=True)
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data)[:3]))
    file.append(b"0123456789")
    assert file.read_at(0, 100) == b"0123456789"
    file.close()


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, path = OsFiles(), str(tmp_path / "f")
    files.write_atomic(path, b"first")
    files.write_atomic(path, b"second")
    assert files.read(path) == b"second"

    def fail(fd: int) -> None:
        raise OSError(28, "full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="full"):
        files.write_atomic(path, b"third")
    assert files.read(path) == b"second"
    assert files.list(str(tmp_path)) == ["f"]


def test_opening_what_is_not_there_fails_and_lists_of_it_are_empty(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OsFiles().open(str(tmp_path / "f"))
    assert OsFiles().list(str(tmp_path / "d")) == []
    OsFiles().remove_tree(str(tmp_path / "d"))


def test_a_lock_holds_until_it_is_given_back(tmp_path: Path) -> None:
    first, second = OsFiles(), OsFiles()
    first.lock(str(tmp_path / "lock"))
    with pytest.raises(BlockingIOError):
        second.lock(str(tmp_path / "lock"))
    first.unlock(str(tmp_path / "lock"))
    second.lock(str(tmp_path / "lock"))
    second.unlock(str(tmp_path / "lock"))


def test_cached_bytes_are_read_whole_or_not_at_all(tmp_path: Path) -> None:
    file = OsFiles().open(str(tmp_path / "f"), create=True)
    file.append(b"0123456789")
    if linux.RWF_NOWAIT:
        assert file.read_cached(3, 4) == b"3456"
        assert file.read_cached(0, 10) == b"0123456789"
    assert file.read_cached(3, 8) is None, "the file is too short"
    file.close()
    assert file.read_cached(0, 1) is None, "another read reports the error"


def test_what_was_just_written_is_cached_and_hints_do_no_harm(tmp_path: Path) -> None:
    file = OsFiles().open(str(tmp_path / "f"), create=True)
    file.append(bytes(1 << 20))
    file.start_writeback(0, 1 << 20)
    file.sync()
    assert file.is_cached(0, 0)
    if linux.RWF_NOWAIT:
        assert file.is_cached(0, 1 << 20)
    linux.drop_cached(file.fileno(), 0, 1 << 20)
    file.load(0, 1 << 20)
    file.load(1 << 19, 1 << 30)  # ends with the file
    if linux.RWF_NOWAIT:
        assert file.is_cached(0, 1 << 20)
    assert file.read_at(0, 1 << 20) == bytes(1 << 20)
    file.close()


def test_a_range_is_loaded_where_sendfile_is_not_supported(tmp_path: Path) -> None:
    file = OsFiles().open(str(tmp_path / "f"), create=True)
    file.append(bytes(1 << 20))
    refusing = os.open(tmp_path / "appended", os.O_WRONLY | os.O_CREAT | os.O_APPEND)  # sendfile returns EINVAL
    linux.load(file.fileno(), 0, 1 << 20, refusing)
    assert os.fstat(refusing).st_size == 0
    os.close(refusing)
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        linux.load(file.fileno(), 0, 1 << 20)


@pytest.mark.parametrize(
    ("size", "probed"),
    [
        (1, [5]),
        (2, [5, 6]),
        (linux.PROBE_BYTES, [5, 4 + linux.PROBE_BYTES]),
        (linux.PROBE_BYTES + 2, [5, 5 + linux.PROBE_BYTES, 6 + linux.PROBE_BYTES]),
    ],
)
@pytest.mark.parametrize("away", [None, 0, -1])
def test_a_range_is_cached_where_both_its_ends_and_each_stretch_between_them_are(
    monkeypatch: pytest.MonkeyPatch, size: int, probed: list[int], away: int | None
) -> None:
    missing = None if away is None else probed[away]
    probes: list[int] = []

    def preadv(fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        probes.append(position)
        if position == missing:
            raise BlockingIOError
        return 1

    monkeypatch.setattr(linux.os, "preadv", preadv)
    monkeypatch.setattr(linux, "RWF_NOWAIT", 8)
    assert linux.is_cached(3, 5, size) == (missing is None)
    if missing is None:
        assert probes == probed


def test_where_nothing_is_known_of_the_cache_nothing_counts_as_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OsFiles().open(str(tmp_path / "f"), create=True)
    file.append(b"abc")
    monkeypatch.setattr(linux, "RWF_NOWAIT", 0)
    assert not file.is_cached(0, 3)
    file.close()


def test_without_a_null_device_a_range_is_loaded_by_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linux, "NULL_DEVICE", None)
    file = OsFiles().open(str(tmp_path / "f"), create=True)
    file.append(bytes(3 << 20))
    file.load(1, 5 << 20)
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.load(0, 1)
