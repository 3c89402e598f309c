"""The machine of the measurements: assignment of cores, and the facts for readers of the results."""

from __future__ import annotations

import os
import platform
import shutil
import ssl
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@dataclass(frozen=True)
class Cores:
    """The broker's core and the client's core; the same one if the machine has only one."""

    broker: int
    client: int

    @classmethod
    def of_this_machine(cls) -> Cores:
        available = sorted(os.sched_getaffinity(0))
        return cls(broker=available[0], client=available[1 % len(available)])

    @property
    def shared(self) -> bool:
        return self.broker == self.client


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds `path`: that of the longest mount point above it."""
    best = ("", "unknown")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _device, mount, kind, *_rest = line.split()
        if path.resolve().is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _java() -> str:
    java = shutil.which("java")
    if java is None:
        return "not installed"
    done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    lines = (done.stderr or done.stdout).splitlines()
    return lines[0].strip() if lines else "unknown"


def _congestion_control() -> str:
    """Return TCP's default congestion control: BBR's timers are expensive in virtual machines."""
    try:
        return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    except OSError:
        return "unknown"


def describe(work_dir: Path, cores: Cores) -> dict[str, str]:
    """Return facts about machine and software, in the order of the report."""
    import confluent_kafka

    return {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} cores, {1 if cores.shared else 2} of them used",
        "Memory": f"{_memory_gib()} GiB",
        "Kernel": platform.release(),
        "TCP congestion control, by default": _congestion_control(),
        "File system of the data": _file_system(work_dir),
        "Python": platform.python_version(),
        "OpenSSL of Python": ssl.OPENSSL_VERSION,
        "Java": _java(),
        "librdkafka": confluent_kafka.libversion()[0],
        "confluent-kafka": _package("confluent-kafka"),
        "Penstock": _package("penstock"),
        "uvloop": _package("uvloop"),
    }
