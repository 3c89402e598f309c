"""Spark needs Java 17 or newer: finds one, says how to get one, installs one on request.

Called by the command line before a session is made, so that nobody meets Spark's own words for a JVM that lacks.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock_spark.jobs.run.cache import place
from penstock_spark.model.errors import PenstockSparkError

OLDEST = 17
INSTALLED = 21
"""The version that `install` brings."""
VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

CURES: Mapping[str, str] = {
    "linux": "apt install openjdk-17-jre-headless   (Debian, Ubuntu; dnf install java-17-openjdk-headless on Fedora)",
    "darwin": "brew install openjdk@17",
    "win32": "winget install EclipseAdoptium.Temurin.17.JRE",
}


class JavaMissing(PenstockSparkError):
    """There is no Java that Spark can run on; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class Java:
    home: Path | None
    """None: the one on the PATH."""
    version: int


def cache() -> Path:
    """Where `install` puts its Java, and `find` looks: XDG_CACHE_HOME/penstock/java."""
    return place("java")


def version_of(text: str) -> int | None:
    """The feature version in what `java -version` prints: 17 of 17.0.15, 8 of 1.8.0_402."""
    found = VERSION.search(text)
    if found is None:
        return None
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def ask(program: str) -> int | None:
    """The version of a Java program, None where it does not run."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return version_of(done.stderr + done.stdout) if done.returncode == 0 else None


def find(
    environment: Mapping[str, str] = os.environ,
    on_path: Callable[[str], str | None] = shutil.which,
    version: Callable[[str], int | None] = ask,
) -> Java:
    """JAVA_HOME if it is set, else the PATH's Java, else the one in the cache. Raises `JavaMissing`."""
    home = environment.get("JAVA_HOME")
    if home:
        found = version(str(Path(home) / "bin" / "java"))
        if found is None:
            raise JavaMissing(f"JAVA_HOME is {home}, but {home}/bin/java does not run. {cure()}")
        if found < OLDEST:
            raise JavaMissing(f"JAVA_HOME is {home}, which is Java {found}; Spark needs {OLDEST} or newer. {cure()}")
        return Java(Path(home), found)
    program = on_path("java")
    if program and (found := version(program)) is not None and found >= OLDEST:
        return Java(None, found)
    for home_ in cached():
        if (found := version(str(home_ / "bin" / "java"))) is not None and found >= OLDEST:
            return Java(home_, found)
    raise JavaMissing(f"Spark needs Java {OLDEST} or newer, and none was found. {cure()}")


def cached() -> list[Path]:
    """Homes of the Javas in the cache; on macOS a home is inside of a bundle."""
    if not cache().is_dir():
        return []
    roots = sorted((p for p in cache().iterdir() if p.is_dir()), reverse=True)
    return [home for root in roots for home in (root / "Contents" / "Home", root) if (home / "bin" / "java").exists()]


def cure(platform: str = sys.platform) -> str:
    """One line that says how this platform gets a Java."""
    command = CURES.get(platform, "install a Java 17 runtime, and set JAVA_HOME")
    return f"Get one with: {command.strip()}; or: penstock-spark java --install"


def prepare() -> Java:
    """Finds a Java, and sets JAVA_HOME where Spark would not find it by itself. Raises `JavaMissing`."""
    java = find()
    if java.home is not None:
        os.environ["JAVA_HOME"] = str(java.home)
    return java


def install() -> Java:
    """A JRE into the cache, by the PyPI package install-jdk. Raises `JavaMissing` where that does not work."""
    try:
        jdk = importlib.import_module("jdk")
    except ImportError:
        raise JavaMissing("this needs a package: pip install install-jdk; then once more") from None
    cache().mkdir(parents=True, exist_ok=True)
    try:
        jdk.install(str(INSTALLED), jre=True, path=str(cache()))
    except Exception as e:
        raise JavaMissing(f"the download failed: {e}. Otherwise: {CURES.get(sys.platform, 'set JAVA_HOME')}") from e
    return find({}, lambda _: None)
