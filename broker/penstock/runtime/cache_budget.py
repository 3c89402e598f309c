"""Decides how much recently appended data stays in the page cache where new memory is slow. Used by `page_cache`.

The budget is a share of the memory that is free or used for the page cache, and shrinks with it: readers that are
behind find their data in memory, and a broker in steady state reuses pages instead of fetching new ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

AUTOMATIC = -2
"""Value of the setting that means a share of the memory."""
MEMORY_SHARE = 0.5
"""Share of the available memory that appended data may use."""
MIN_KEEP_BYTES = 128 << 20
MAX_KEEP_BYTES = 16 << 30
"""Bounds of the automatic budget; the upper one bounds the number of ranges that are recorded."""
REFRESH_INTERVAL_NS = 1_000_000_000
MAX_PSEUDO_FILE_BYTES = 1 << 16
UNLIMITED_BYTES = 1 << 60
"""A larger cgroup limit means no limit."""


class CacheBudget:
    """The bytes to keep: `fixed_bytes`, or MEMORY_SHARE of the memory if that is None.

    `available` returns the bytes of memory that are free or easily reclaimed; None if unknown. `refresh` may run in
    another thread.
    """

    def __init__(self, available: Callable[[], int | None], fixed_bytes: int | None = None) -> None:
        self.available, self.is_fixed = available, fixed_bytes is not None
        self.keep_bytes = fixed_bytes or 0
        self.next_refresh_ns = 0
        if not self.is_fixed:
            self.refresh()

    def is_refresh_due(self, now_ns: int) -> bool:
        """Return whether the memory must be read again. Counts as done then."""
        if self.is_fixed or now_ns < self.next_refresh_ns:
            return False
        self.next_refresh_ns = now_ns + REFRESH_INTERVAL_NS
        return True

    def refresh(self) -> None:
        """Read the memory and set `keep_bytes`."""
        share_bytes = int((self.available() or 0) * MEMORY_SHARE)
        self.keep_bytes = min(max(share_bytes, MIN_KEEP_BYTES), MAX_KEEP_BYTES)


class MemoryCgroup(NamedTuple):
    """The directory of a cgroup and the names of its files with limits and usage, in bytes."""

    directory: str
    limits: tuple[str, ...]
    usage: str


class AvailableMemory:
    """Memory that is free or easily reclaimed: the machine's MemAvailable, or less if a cgroup limits the process.

    Reads below `root`, for tests. Missing, unreadable and malformed files count as no limit.
    """

    def __init__(self, root: str = "/") -> None:
        self.root = root

    def __call__(self) -> int | None:
        """Return the bytes; None if nothing is known."""
        known = [size for size in (self.of_machine(), *map(self.of_cgroup, self.cgroups())) if size is not None]
        return min(known) if known else None

    def of_machine(self) -> int | None:
        """Return MemAvailable."""
        kib = numbers(self.read("proc/meminfo").replace(":", "")).get("MemAvailable")
        return None if kib is None else kib * 1024

    def cgroups(self) -> list[MemoryCgroup]:
        """Return the process's cgroups that may limit its memory. In a container, its own group is mounted as the root
        of the hierarchy."""
        found = []
        for line in self.read("proc/self/cgroup").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0" and not controllers:
                root = MemoryCgroup("sys/fs/cgroup", ("memory.max", "memory.high"), "memory.current")
            elif "memory" in controllers.split(","):
                root = MemoryCgroup("sys/fs/cgroup/memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes")
            else:
                continue
            found.append(root)
            if ".." not in path.split("/") and "\0" not in path:
                found.append(root._replace(directory=os.path.join(root.directory, path.strip("/"))))
        return found

    def of_cgroup(self, cgroup: MemoryCgroup) -> int | None:
        """Return what a cgroup may use besides memory that is not page cache; None without a limit."""
        sizes = [size_of(self.read(f"{cgroup.directory}/{name}")) for name in cgroup.limits]
        limits = [size for size in sizes if size is not None and size < UNLIMITED_BYTES]
        usage = size_of(self.read(f"{cgroup.directory}/{cgroup.usage}"))
        if not limits or usage is None:
            return None
        statistics = numbers(self.read(f"{cgroup.directory}/memory.stat"))
        reclaimable = statistics.get("inactive_file", 0) + statistics.get("active_file", 0)
        return max(min(limits) - max(usage - reclaimable, 0), 0)

    def read(self, path: str) -> str:
        """Return the beginning of a file below the root; empty if it cannot be read."""
        try:
            with open(os.path.join(self.root, path), "rb") as file:
                return file.read(MAX_PSEUDO_FILE_BYTES).decode("ascii", errors="replace")
        except OSError:
            return ""


def size_of(text: str) -> int | None:
    """Return a non-negative number of bytes; None for `max` and for anything else."""
    text = text.strip()
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else None


def numbers(text: str) -> dict[str, int]:
    """Return the lines `name number ...` of a file of statistics, without malformed ones."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        size = size_of(rest.split()[0]) if rest.split() else None
        if size is not None:
            found[name] = size
    return found
