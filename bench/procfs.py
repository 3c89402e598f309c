"""CPU time and memory of a process and its descendants, read from the kernel.

The client processes read CPU time at both ends of a timed section; the suites read memory. CPU time comes from the
process's CPU clock, the source of utime + stime in /proc/PID/stat, in nanoseconds instead of ticks of 10 ms. It
includes all threads, also those that have ended.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PARENT, _CHILDREN_USER, _CHILDREN_SYSTEM = 1, 13, 14  # fields of /proc/PID/stat, counted after the name
_PROCESS_CLOCK_SCHED = 2  # the kernel's CPUCLOCK_SCHED; a process clock's id is (~pid << 3) | 2


def _stat_fields(pid: int) -> list[str]:
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split()


def tree(*pids: int) -> list[int]:
    """Return the processes and all their living descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = int(_stat_fields(int(entry))[_PARENT])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry))
    found, todo = [], list(pids)
    while todo:
        current = todo.pop()
        found.append(current)
        todo.extend(children.get(current, ()))
    return found


def _one_cpu_s(pid: int) -> float:
    try:
        own = time.clock_gettime((~pid << 3) | _PROCESS_CLOCK_SCHED)
        fields = _stat_fields(pid)
    except (OSError, ProcessLookupError):
        return 0.0
    return own + (int(fields[_CHILDREN_USER]) + int(fields[_CHILDREN_SYSTEM])) / TICKS_PER_S


def cpu_s(*pids: int) -> float:
    """Return the CPU seconds, user and system, used by the processes, their threads and children."""
    return sum(_one_cpu_s(member) for member in tree(*pids))


def _status_bytes(pid: int, field: str) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def resident_bytes(*pids: int) -> int:
    """Return the resident memory of the processes and their descendants; shared pages count for each."""
    return sum(_status_bytes(member, "VmRSS") for member in tree(*pids))


def peak_resident_bytes(*pids: int) -> int:
    """Return the sum of each living process's maximum resident size."""
    return sum(_status_bytes(member, "VmHWM") for member in tree(*pids))


def machine_busy_s() -> float:
    """Return the CPU seconds that all processors together have spent neither idle nor waiting for I/O."""
    fields = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S
