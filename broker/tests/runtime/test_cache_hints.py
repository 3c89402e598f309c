"""Hints are given in another thread, on descriptors of their own, and never fail."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from penstock.runtime import linux
from penstock.runtime.cache_hints import MAX_QUEUED_HINTS, HintThread, ThreadedHints

LIMIT_S = 60
MIB = 1 << 20


@pytest.fixture
def fd(tmp_path: Path) -> int:
    """Return the descriptor of a file of 1 MiB on disk."""
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    os.write(fd, bytes(MIB))
    os.fsync(fd)
    return fd


def block(event: threading.Event) -> None:
    """Occupy a thread until an event."""
    assert event.wait(LIMIT_S)


def finish(thread: HintThread) -> None:
    """Wait until the thread has run its jobs."""
    done = threading.Event()
    thread.run(done.set)
    assert done.wait(LIMIT_S)


def test_a_hint_for_a_file_that_is_closed_meanwhile_has_its_own_descriptor(fd: int) -> None:
    thread, go, seen = HintThread("test"), threading.Event(), list[os.stat_result]()
    thread.run(lambda: block(go))
    size = os.fstat(fd)
    copies: list[int] = []

    def job(copy: int) -> None:
        copies.append(copy)
        seen.append(os.fstat(copy))

    thread.run_on(fd, job)
    os.close(fd)
    go.set()
    finish(thread)
    assert seen[0].st_ino == size.st_ino
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(copies[0])


def test_a_hint_that_fails_does_not_end_the_thread(fd: int) -> None:
    thread = HintThread("test")

    def failing(_copy: int) -> None:
        raise OSError("no such hint")

    thread.run_on(fd, failing)
    finish(thread)
    os.close(fd)
    thread.run_on(fd, failing)
    finish(thread)


def test_hints_for_a_disk_that_does_not_respond_are_bounded(fd: int) -> None:
    thread, go, given = HintThread("test"), threading.Event(), list[int]()
    thread.run(lambda: block(go))
    for _ in range(MAX_QUEUED_HINTS + 50):
        thread.run_on(fd, given.append)
    go.set()
    finish(thread)
    assert MAX_QUEUED_HINTS - 1 <= len(given) <= MAX_QUEUED_HINTS
    os.close(fd)


@pytest.mark.skipif(not linux.RWF_NOWAIT, reason="the platform does not tell what is cached")
def test_ranges_are_dropped_and_read_ahead(fd: int) -> None:
    hints = ThreadedHints()
    deadline = time.monotonic() + LIMIT_S
    while linux.is_cached(fd, 0, MIB):  # the kernel keeps pages that it uses itself at the time
        assert time.monotonic() < deadline, "the range is still in memory"
        hints.write(fd, 0, MIB)
        hints.drop(fd, 0, MIB)
        finish(hints.writer)
    hints.read_ahead(fd, 0, MIB)
    finish(hints.reader)
    assert linux.is_cached(fd, 0, MIB)
    os.close(fd)
