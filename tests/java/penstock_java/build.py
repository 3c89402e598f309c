"""The client's jars from Maven, resolved once into the user's cache, and the scenarios compiled against them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from penstock_java.scenarios import NEWEST

HOME = Path(__file__).parents[1]
RELEASE = "17"
RESOLVE_LIMIT_S = 300
COMPILE_LIMIT_S = 120


class JavaUnavailable(Exception):
    """The scenarios cannot be built; the message says what is missing and how to install it."""


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise JavaUnavailable(
            f"the tests with Apache's Java client need {name}, which is not on the PATH. Cure: install a JDK of "
            f"{RELEASE} or newer and Maven ('sudo apt-get install openjdk-{RELEASE}-jdk-headless maven' on Debian "
            "and Ubuntu)"
        )
    return found


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "penstock" / "java"


def _run(command: list[str], limit_s: int, what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode:
        raise JavaUnavailable(f"{what} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def resolve(client: str, pom: str = "pom.xml", name: str = "kafka-clients") -> Path:
    """Return the folder of the jars of kafka-clients `client`, or of another `pom` in that version."""
    return resolve_pom(HOME / pom, f"{name}-{client}", [f"-Dkafka.version={client}"])


def resolve_pom(pom: Path, name: str, options: Sequence[str] = ()) -> Path:
    """Return the folder in the cache with the jars that `pom` requires; its name is `name` with a digest of `pom`.

    Maven runs only if the folder is missing. The folder is created atomically. Raises `JavaUnavailable`.
    """
    jars = cache_folder() / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    if jars.is_dir():
        return jars
    maven = program("mvn")
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent) as work:
        found = Path(work) / "jars"
        goal = "dependency:copy-dependencies"
        options = [*options, f"-DoutputDirectory={found}", "-DincludeScope=runtime"]
        _run([maven, "-q", "-B", "-f", str(pom), goal, *options], RESOLVE_LIMIT_S, f"resolving {name}")
        try:
            found.rename(jars)
        except OSError:
            assert jars.is_dir(), f"the jars of {name} could not be moved into {jars.parent}"
    return jars


def compile_scenarios(client: str, classes: Path, folders: Sequence[str] = ()) -> str:
    """Compile the sources in `folders`, or all scenarios of that release; return the class path to run with."""
    jars = resolve(client)
    folders = folders or (("src", "src4") if client == NEWEST else ("src",))
    sources = [str(source) for folder in folders for source in sorted((HOME / folder).rglob("*.java"))]
    assert sources, "there are no scenarios to compile"
    lint = ["-Xlint:all,-processing,-try", "-Werror"]
    command = [program("javac"), *lint, "--release", RELEASE, "-cp", f"{jars}/*", "-d", str(classes), *sources]
    _run(command, COMPILE_LIMIT_S, f"compiling the scenarios against kafka-clients {client}")
    return f"{classes}{os.pathsep}{jars}/*"
