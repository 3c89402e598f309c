"""Java applications as users run them: jars from Maven, source compiled once, one process per run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from penstock_e2e.process import Application

from penstock_java.build import COMPILE_LIMIT_S, HOME, RELEASE, JavaUnavailable, program, resolve_pom

SOURCES = HOME / "applications"
FLAGS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
FLINK_FLAGS = (
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.time=ALL-UNNAMED",
)


def jars_of(name: str) -> Path:
    """Return the folder of the jars of `applications/<name>/pom.xml`; it depends on the content of the pom."""
    pom = SOURCES / name / "pom.xml"
    return resolve_pom(pom, f"application-{name}")


def class_path(name: str, classes: Path) -> str:
    """Compile `applications/<name>` into the folder `classes` and return the class path to run it with."""
    jars = jars_of(name)
    sources = sorted(map(str, (SOURCES / name).glob("*.java")))
    command = [program("javac"), "--release", RELEASE, "-cp", f"{jars}/*", "-d", str(classes), *sources]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_LIMIT_S, check=False)
    if done.returncode:
        raise JavaUnavailable(f"compiling {SOURCES / name} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return os.pathsep.join([str(classes), f"{jars}/*", str(SOURCES / name)])


def start(class_path: str, main: str, arguments: Sequence[str], log: Path, flags: Sequence[str] = ()) -> Application:
    """Start the class `main`; its output goes to `log`."""
    return Application([program("java"), *FLAGS, *flags, "-cp", class_path, main, *arguments], log)
