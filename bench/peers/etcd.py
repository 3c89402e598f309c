"""etcd with one member, the metadata store of a Penstock cluster, at its defaults: every write is synced to disk."""

from __future__ import annotations

import http.client
import re
import subprocess
import time
from pathlib import Path
from typing import ClassVar

from bench.peers.broker import Peer, free_port
from penstock.state.etcd.binary import find_etcd

POLL_S = 0.02


class Etcd(Peer):
    """An etcd that serves clients on the given port."""

    label = "etcd"
    durable_topic: ClassVar[dict[str, str]] = {}
    unflushed_topic: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self._program = find_etcd().path

    def version(self) -> str:
        done = subprocess.run([self._program, "--version"], capture_output=True, text=True, timeout=30, check=True)
        found = re.search(r"etcd Version: (\S+)", done.stdout)
        return f"etcd {found.group(1) if found else 'of an unknown version'}"

    def command(self, data_dir: Path, port: int) -> list[str]:
        url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
        return [
            self._program,
            "--name=bench",
            f"--data-dir={data_dir}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=bench={peer_url}",
            "--log-level=warn",
        ]

    def wait_until_answering(self, address: str, deadline: float) -> None:
        while not _is_healthy(address):
            if time.monotonic() > deadline:
                raise TimeoutError(f"etcd at {address} is not healthy")
            time.sleep(POLL_S)


def _is_healthy(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
