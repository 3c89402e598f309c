"""Finds and installs the Java 17 or newer that Spark needs.

Called by the command line before it creates a session, so that a missing Java is reported clearly.
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
"""The version that `install` installs."""
VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

INSTALL_COMMANDS: Mapping[str, str] = {
    "linux": "apt install openjdk-17-jre-headless   (Debian, Ubuntu; dnf install java-17-openjdk-headless on Fedora)",
    "darwin": "brew install openjdk@17",
    "win32": "winget install EclipseAdoptium.Temurin.17.JRE",
}


class JavaMissing(PenstockSparkError):
    """Java is missing or too old; the message says how to install it."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation."""

    home: Path | None
    """Installation directory; None: the `java` on the PATH."""
    version: int


def cache() -> Path:
    """Return the directory where `install` puts Java: XDG_CACHE_HOME/penstock/java."""
    return place("java")


def version_of(text: str) -> int | None:
    """Return the feature version in the output of `java -version`: 17 of 17.0.15, 8 of 1.8.0_402."""
    found = VERSION.search(text)
    if found is None:
        return None
    return int(found[2]) if found[1] == "1" and found[2] else int(found[1])


def query_version(program: str) -> int | None:
    """Return the version of a `java` program; None if it does not run."""
    try:
        result = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return version_of(result.stderr + result.stdout) if result.returncode == 0 else None


def find(
    environment: Mapping[str, str] = os.environ,
    on_path: Callable[[str], str | None] = shutil.which,
    version: Callable[[str], int | None] = query_version,
) -> Java:
    """Return JAVA_HOME if it is set, else the PATH's Java, else the one in the cache. Raises `JavaMissing`."""
    home = environment.get("JAVA_HOME")
    if home:
        found = version(str(Path(home) / "bin" / "java"))
        if found is None:
            raise JavaMissing(f'JAVA_HOME is "{home}", but "{home}/bin/java" does not run; {cure()}')
        if found < OLDEST:
            raise JavaMissing(f'JAVA_HOME is "{home}", which is Java {found}; Spark needs {OLDEST} or newer; {cure()}')
        return Java(Path(home), found)
    program = on_path("java")
    if program and (found := version(program)) is not None and found >= OLDEST:
        return Java(None, found)
    for home_ in cached():
        if (found := version(str(home_ / "bin" / "java"))) is not None and found >= OLDEST:
            return Java(home_, found)
    raise JavaMissing(f"Java not found: Spark needs Java {OLDEST} or newer; {cure()}")


def cached() -> list[Path]:
    """Return the homes of the cached Javas; on macOS a home is inside a bundle."""
    if not cache().is_dir():
        return []
    roots = sorted((p for p in cache().iterdir() if p.is_dir()), reverse=True)
    return [home for root in roots for home in (root / "Contents" / "Home", root) if (home / "bin" / "java").exists()]


def cure(platform: str = sys.platform) -> str:
    """Return how to install Java on a platform."""
    command = INSTALL_COMMANDS.get(platform, "install a Java 17 runtime, and set JAVA_HOME")
    return f"install it with: {command.strip()}; or: penstock-spark java --install"


def prepare() -> Java:
    """Find Java, and set JAVA_HOME if Spark would not find it. Raises `JavaMissing`."""
    java = find()
    if java.home is not None:
        os.environ["JAVA_HOME"] = str(java.home)
    return java


def install() -> Java:
    """Install a JRE into the cache with the PyPI package install-jdk. Raises `JavaMissing`."""
    try:
        jdk = importlib.import_module("jdk")
    except ImportError:
        raise JavaMissing("the package install-jdk is missing; run: pip install install-jdk") from None
    cache().mkdir(parents=True, exist_ok=True)
    try:
        jdk.install(str(INSTALLED), jre=True, path=str(cache()))
    except Exception as e:
        command = INSTALL_COMMANDS.get(sys.platform, "set JAVA_HOME")
        raise JavaMissing(f"cannot download Java: {e}; alternative: {command}") from e
    return find({}, lambda _: None)
