"""Linux system calls, each with a slower portable fallback. Called by `disk`, `server` and `node`.

fdatasync, non-blocking reads (preadv2 with RWF_NOWAIT), early writeback (sync_file_range), read hints (posix_fadvise),
connections without pacing, files in memory (memfd_create), and the descriptor limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator

ON_LINUX = sys.platform.startswith("linux")
SYNC_FILE_RANGE_WRITE = 2
PROBE_BYTES = 1 << 20
"""Distance of the probes in a range: the kernel loads pages in runs and evicts the oldest first, so the ends tell most.
"""
PROBE_BUFFERS = [bytearray(1)]
"""Buffer for the byte that a probe reads."""


def _force_sync(fd: int) -> None:
    """Force a file's content to disk where there is no fdatasync; on macOS fsync is not enough."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        return
    os.fsync(fd)


datasync: Callable[[int], None] = os.fdatasync if ON_LINUX else _force_sync
"""Returns when a file's content and size are on disk."""

RWF_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)


def is_cached(fd: int, offset: int, size: int) -> bool:
    """Return whether a range seems to be in the page cache; False if unknown."""
    if not RWF_NOWAIT:
        return False
    last = offset + size - 1
    try:
        for position in range(offset, last, PROBE_BYTES):
            os.preadv(fd, PROBE_BUFFERS, position, RWF_NOWAIT)
        os.preadv(fd, PROBE_BUFFERS, last, RWF_NOWAIT)
    except OSError:  # EAGAIN: not in the page cache; EOPNOTSUPP: unsupported by the file system
        return False
    return True


def read_cached(fd: int, offset: int, size: int) -> bytearray | None:
    """Return `size` bytes from the page cache; None if they are not all there, or if that is unknown."""
    if not RWF_NOWAIT:
        return None
    data = bytearray(size)
    try:
        return data if os.preadv(fd, [data], offset, RWF_NOWAIT) == size else None
    except OSError:  # a read that waits reports other errors than EAGAIN
        return None


def _open_null_device() -> int | None:
    with contextlib.suppress(OSError):
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    return None


NULL_DEVICE = _open_null_device() if ON_LINUX else None
LOADED_AT_ONCE_BYTES = 1 << 20


NO_SENDFILE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of file systems and sandboxes without sendfile."""


def load(fd: int, offset: int, size: int, null_device: int | None = NULL_DEVICE) -> None:
    """Read a range into the page cache and wait for it; returns early at the end of the file. Raises OSError."""
    end = offset + size
    while offset < end:
        loaded_bytes = _load_once(fd, offset, min(end - offset, LOADED_AT_ONCE_BYTES), null_device)
        if not loaded_bytes:
            return
        offset += loaded_bytes


def _load_once(fd: int, offset: int, size: int, null_device: int | None) -> int:
    """Load the start of a range; return the number of bytes.

    sendfile to the null device copies nothing. A copy would cost processor time, above all for pages that a
    hypervisor has to provide when the processor first touches them.
    """
    if null_device is not None:
        try:
            return os.sendfile(null_device, fd, offset, size)
        except OSError as e:
            if e.errno not in NO_SENDFILE:
                raise
    return len(os.pread(fd, size, offset))


def _find_sync_file_range() -> Callable[[int, int, int], None]:
    function = None
    if ON_LINUX:
        function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is None:
        return lambda fd, offset, size: None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    function.restype = ctypes.c_int

    def start_writeback(fd: int, offset: int, size: int) -> None:
        # Only a hint: the sync that follows reports a write error.
        function(fd, offset, size, SYNC_FILE_RANGE_WRITE)

    return start_writeback


start_writeback = _find_sync_file_range()
"""Ask the kernel to write a range of dirty pages, without waiting."""


def drop_cached(fd: int, offset: int, size: int) -> None:
    """Tell the kernel that a range will not be read again soon."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, offset, size, os.POSIX_FADV_DONTNEED)


def disable_pacing(sock: socket.socket) -> None:
    """Disable pacing for the connections of a loopback listener, whatever the system's default.

    BBR estimates a path's bandwidth by spreading packets over time, with a timer for each. Between two local processes
    there is no bandwidth to estimate, and the timers cost several times as much as sending. Reno sends at once, is part
    of every kernel and needs no privilege.
    """
    if hasattr(socket, "TCP_CONGESTION"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


MAX_DESCRIPTORS = 1 << 20


def raise_descriptor_limit() -> int:
    """Raise the limit of open file descriptors to the hard limit and return it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def boot_id() -> str:
    """Return the ID of the machine's current boot, which is the lifetime of its page cache; empty if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


@contextlib.contextmanager
def private_file(content: bytes) -> Iterator[str]:
    """Yield the path of a file with `content` that only this process can open by it: in memory on Linux, else on disk.

    For libraries that read secrets from files only.
    """
    if ON_LINUX:
        fd = os.memfd_create("penstock", os.MFD_CLOEXEC)
        with open(fd, "wb") as file:
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{fd}"
        return
    with tempfile.NamedTemporaryFile() as file:  # only its owner can read it
        file.write(content)
        file.flush()
        yield file.name
