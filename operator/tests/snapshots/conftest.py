from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from snapshots.snapshot_kit import RunningEtcd, reserved_port, until_served


@pytest.fixture(scope="package")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEtcd]:
    running = RunningEtcd(tmp_path_factory.mktemp("etcd"))
    running.wait()
    yield running
    running.stop()


@pytest.fixture(scope="package")
def s3() -> Iterator[str]:
    """Start an S3 server; return its address."""
    port = reserved_port()
    number = port.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(number)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{number}"
    until_served(url)
    yield url
    process.kill()
    process.wait()
    port.close()
