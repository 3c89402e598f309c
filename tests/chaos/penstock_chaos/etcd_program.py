"""Finds the etcd of the chaos tests: a current release, whose data survives a kill.

Search order: the variable PENSTOCK_CHAOS_ETCD, `etcd` on PATH, one that was built before, one built now from the
released Go modules that `tests/chaos/etcd/go.sum` pins. Called by `cluster`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

VARIABLE = "PENSTOCK_CHAOS_ETCD"
SOURCES = Path(__file__).parents[1] / "etcd"
BUILD_LIMIT_S = 1200
CURE = (
    f"The chaos tests need an etcd whose data survives a kill: put one on PATH (Debian: etcd-server), name one in"
    f" {VARIABLE}, or install Go 1.23 or newer, with which one is built"
)
DOUBTFUL = re.compile(r"^3\.5\.[0-2]$")
"""Releases that may lose acknowledged writes after a kill; fixed in 3.5.3."""
_VERSION = re.compile(r"^etcd Version: (\S+)", re.MULTILINE)


class NoEtcd(Exception):
    """No suitable etcd was found and none can be built; the message says how to fix it."""


def version_of(program: str) -> str:
    """Return the version, such as 3.5.21. Raises `NoEtcd` if the program does not print it."""
    try:
        told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except OSError as e:
        raise NoEtcd(f"{program} cannot be run: {e}. {CURE}.") from None
    found = _VERSION.search(told.stdout)
    if found is None:
        raise NoEtcd(f"{program} --version says {told.stdout + told.stderr!r}, so it is no etcd. {CURE}.")
    return found[1]


def find_etcd() -> str:
    """Return the path of a suitable program. Raises `NoEtcd`."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        version = version_of(named)
        if DOUBTFUL.match(version):
            raise NoEtcd(f"{VARIABLE} names etcd {version}, which may lose data when it is killed. {CURE}.")
        return named
    on_path = shutil.which("etcd")
    if on_path is not None and not DOUBTFUL.match(version_of(on_path)):
        return on_path
    return build()


def built_program() -> Path:
    """Return the path of the built program, which contains a hash of the sources: changed sources are rebuilt."""
    digest = hashlib.sha256(b"".join((SOURCES / name).read_bytes() for name in ("main.go", "go.mod", "go.sum")))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "penstock" / "chaos" / f"etcd-{digest.hexdigest()[:16]}"


def build() -> str:
    """Build the program, unless it exists; return its path. The build takes some minutes on two cores."""
    target = built_program()
    if target.exists():
        return str(target)
    go = shutil.which("go")
    if go is None:
        raise NoEtcd(f"{CURE} (there is no go on PATH).")
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"building etcd into {target}: some minutes, once", flush=True)
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-trimpath -modcacherw -buildvcs=false -mod=readonly"}
    command = [go, "build", "-ldflags", "-s -w", "-o", str(unfinished), "."]
    done = subprocess.run(
        command, cwd=SOURCES, env=environment, capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise NoEtcd(f"etcd could not be built: {done.stderr.strip()[-2000:]}\n{CURE}.")
    unfinished.rename(target)
    return str(target)
