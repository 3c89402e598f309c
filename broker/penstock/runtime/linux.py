"""What only Linux has, each with a fallback that is right everywhere and slower. Called by `disk`, `server` and `node`.

fdatasync, reads that do not wait for the disk (preadv2 with RWF_NOWAIT), early writeback (sync_file_range), hints on
how a file is read (posix_fadvise), and connections without pacing; and how many descriptors the process may have.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
from collections.abc import Callable

ON_LINUX = sys.platform.startswith("linux")
SYNC_FILE_RANGE_WRITE = 2
PROBE_BYTES = 1 << 20
"""How far apart a range is probed: pages come in by runs, and go the oldest first, so that the ends tell the most."""
PROBED = [bytearray(1)]
"""Where a probe's byte goes."""


def _sync(fd: int) -> None:
    """Forces a file's content to disk where there is no fdatasync; macOS needs more than fsync."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        return
    os.fsync(fd)


datasync: Callable[[int], None] = os.fdatasync if ON_LINUX else _sync
"""Returns when a file's content and size are on disk."""

RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)


def is_cached(fd: int, offset: int, size: int) -> bool:
    """Whether the range seems to be in memory; False wherever that cannot be told."""
    if not RWF_NOWAIT:
        return False
    last = offset + size - 1
    try:
        for position in range(offset, last, PROBE_BYTES):
            os.preadv(fd, PROBED, position, RWF_NOWAIT)
        os.preadv(fd, PROBED, last, RWF_NOWAIT)
    except OSError:  # EAGAIN: it would wait; EOPNOTSUPP: this file system cannot say
        return False
    return True


def _find_sync_file_range() -> Callable[[int, int, int], None]:
    function = None
    if ON_LINUX:
        function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is None:
        return lambda fd, offset, size: None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    function.restype = ctypes.c_int

    def start_writeback(fd: int, offset: int, size: int) -> None:
        # A hint: a failure here is found again, and then counts, by the sync that follows.
        function(fd, offset, size, SYNC_FILE_RANGE_WRITE)

    return start_writeback


start_writeback = _find_sync_file_range()
"""Asks for a range of dirty pages to be written, without waiting for it."""


def forget(fd: int, offset: int, size: int) -> None:
    """Tells the kernel that a range will not be read again soon."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)


def do_without_pacing(sock: socket.socket) -> None:
    """For a listener that only this machine reaches: what it accepts is not paced, whatever the system's default.

    BBR finds a path's bandwidth by spreading packets over time, with a timer for each. Between two processes there is
    nothing to find, and the timers cost several times what sending does. Reno sends at once, is part of every kernel
    and may be chosen by anybody.
    """
    if hasattr(socket, "TCP_CONGESTION"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


MAX_DESCRIPTORS = 1 << 20


def raise_descriptor_limit() -> int:
    """Takes as many descriptors as the system lets this process have; returns how many that is."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def boot_id() -> str:
    """Names the machine's present boot: what is in its page cache lives as long. Empty where that cannot be told."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
