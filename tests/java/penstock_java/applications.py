"""Java applications as users run them: their jars from Maven, their source compiled once, each run a process."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from penstock_java.build import COMPILE_LIMIT_S, HOME, RELEASE, JavaUnavailable, program, resolve_pom

SOURCES = HOME / "applications"
FLAGS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
FLINK_FLAGS = (
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.time=ALL-UNNAMED",
)
POLL_S = 0.1
END_LIMIT_S = 60.0


def jars_of(name: str) -> Path:
    """Return the folder of the jars of `applications/<name>/pom.xml`; another pom has another folder."""
    pom = SOURCES / name / "pom.xml"
    return resolve_pom(pom, f"application-{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}")


def class_path(name: str, classes: Path) -> str:
    """Compile `applications/<name>` into the folder `classes` and return the class path to run it with."""
    jars = jars_of(name)
    sources = sorted(map(str, (SOURCES / name).glob("*.java")))
    command = [program("javac"), "--release", RELEASE, "-cp", f"{jars}/*", "-d", str(classes), *sources]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False)
    if done.returncode:
        raise JavaUnavailable(f"compiling {SOURCES / name} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return os.pathsep.join([str(classes), f"{jars}/*", str(SOURCES / name)])


class Application:
    """One run of an application; a context manager that kills what still runs.

    Standard output and standard error go to `<log>`, which a second run with the same path continues.
    """

    def __init__(self, class_path: str, main: str, arguments: Sequence[str], log: Path, flags: Sequence[str] = ()):
        self.log = log
        self._begun = log.stat().st_size if log.exists() else 0
        command = [program("java"), *FLAGS, *flags, "-cp", class_path, main, *arguments]
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    @property
    def output(self) -> str:
        """What this run has written so far."""
        return self.log.read_bytes()[self._begun :].decode(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def check(self) -> None:
        """Raises AssertionError with the end of the log if the application has ended."""
        code = self._process.poll()
        assert code is None, f"the application ended with exit code {code}:\n{self.output[-6000:]}"

    def wait(self, limit_s: float) -> None:
        """Wait for the end. Raises AssertionError unless it ends in time with exit code 0."""
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the application still runs after {limit_s:.0f} s:\n{self.output[-6000:]}") from None
        assert code == 0, f"the application ended with exit code {code}:\n{self.output[-6000:]}"

    def kill(self) -> None:
        """Send SIGKILL, as the kernel does when memory runs out; returns when the process is gone."""
        self.check()
        self._process.kill()
        self._process.wait(END_LIMIT_S)

    def stop(self) -> None:
        """Send SIGTERM; a JVM whose shutdown hooks ran ends with 143."""
        self.check()
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(END_LIMIT_S)
        assert code in (0, 143), f"the application ended with exit code {code}:\n{self.output[-6000:]}"

    def __enter__(self) -> Application:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(END_LIMIT_S)


def wait_until(what: str, condition: Callable[[], bool], limit_s: float, *running: Application) -> None:
    """Wait for a condition. Raises AssertionError if it takes too long, or if one of `running` ends meanwhile."""
    deadline = time.monotonic() + limit_s
    while not condition():
        for application in running:
            application.check()
        tails = "\n".join(application.output[-3000:] for application in running)
        assert time.monotonic() < deadline, f"waited {limit_s:.0f} s for {what}:\n{tails}"
        time.sleep(POLL_S)
