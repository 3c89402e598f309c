"""Finds the driver's JVM and its settings from one of its Python processes.

Planning and commits run in Python workers of the JVM. They have no session, but are descendants of the JVM, whose
command line and files have its settings. If something is unknown, the safe value is used.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MAX_ANCESTORS = 64
MAX_FILE_BYTES = 1 << 20
_SETTING = re.compile(r"\s*([^\s=:#!][^\s=:]*)\s*[=:\s]\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class SinkDriver:
    """The driver's JVM. `started` distinguishes it from a later process with the same id. `settings` are Spark's, where
    visible."""

    pid: int
    started: str
    settings: Mapping[str, str]

    @property
    def executors_are_local(self) -> bool:
        """Whether every task runs on this machine; False if unknown."""
        return self.settings.get("spark.master", "").startswith("local")

    @property
    def speculates(self) -> bool:
        """Whether Spark runs speculative copies of tasks."""
        return self.settings.get("spark.speculation", "").strip().lower() == "true"


def find_driver() -> SinkDriver:
    """Return the nearest ancestor that is a JVM, else the nearest that is not a Python process of Spark."""
    found = None
    for pid in ancestors(os.getpid()):
        words = command_line(pid)
        if words and Path(words[0]).name.startswith("java"):
            found = pid
            break
        if found is None and not any("pyspark" in word for word in words):
            found = pid
    pid = found or os.getppid()
    return SinkDriver(pid, start_time(pid), settings_of(command_line(pid)))


def ancestors(pid: int) -> Iterator[int]:
    """Yield the ids of a process's ancestors, nearest first."""
    for _ in range(MAX_ANCESTORS):
        pid = parent_of(pid)
        if pid <= 1:
            if pid == 1:
                yield 1  # in a container the JVM may have process id 1
            return
        yield pid


def parent_of(pid: int) -> int:
    """Return the id of a process's parent; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_stat(pid)[1])
    return _ps_number(pid, "ppid=")


def start_time(pid: int) -> str:
    """Return the start time of a process in the system's unit; empty if unknown."""
    with contextlib.suppress(OSError, IndexError):
        return _stat(pid)[19]
    return re.sub(r"\W+", "-", _ps(pid, "lstart=")).strip("-")


def command_line(pid: int) -> list[str]:
    """Return the command line of a process; empty if unknown."""
    with contextlib.suppress(OSError):
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
        return [word.decode(errors="replace") for word in data.split(b"\0") if word]
    return _ps(pid, "args=").split()


def is_alive(pid: int, started: str) -> bool:
    """Return whether a process with this start time still runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return start_time(pid) in (started, "")


def settings_of(words: list[str]) -> dict[str, str]:
    """Return Spark's settings from a JVM's command line and the files it names, with Spark's precedence."""
    found: dict[str, str] = {}
    files: list[Path] = []
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--master":
            found["spark.master"] = following
        elif word in ("--conf", "-c") and "=" in following:
            name, _, value = following.partition("=")
            found[name.strip()] = value
        elif word.startswith("-Dspark.") and "=" in word:
            name, _, value = word[2:].partition("=")
            found.setdefault(name, value)
        elif word == "--properties-file":
            files.append(Path(following))
    if not files:
        home = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", "/nonexistent"), "conf")
        files.append(Path(home) / "spark-defaults.conf")
    for path in files:
        with contextlib.suppress(OSError):
            if path.stat().st_size <= MAX_FILE_BYTES:
                for line in path.read_text(errors="replace").splitlines():
                    matched = _SETTING.fullmatch(line)
                    if matched:
                        found.setdefault(matched[1], matched[2])
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the name, which may have spaces and brackets: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def _ps(pid: int, column: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        result = subprocess.run(  # noqa: S603 (numbers and constants)
            ["ps", "-o", column, "-p", str(pid)],  # noqa: S607 (on systems without /proc, which all have it)
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
        return result.stdout.strip()
    return ""


def _ps_number(pid: int, column: str) -> int:
    text = _ps(pid, column)
    return int(text) if text.isdecimal() else 0
