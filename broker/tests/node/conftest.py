"""Makes the kits of this folder importable; fixtures for brokers and clusters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "state")]

from cluster_processes import Cluster, running  # noqa: E402
from node_kit import MakeProcess, Process  # noqa: E402


@pytest.fixture
def up(tmp_path: Path) -> Iterator[MakeProcess]:
    """Start `penstock up` with these arguments on the test's data directory, and wait until it is ready."""
    begun: list[Process] = []

    def begin(*arguments: str, **more: object) -> Process:
        process = Process(tmp_path, *arguments, **more)  # type: ignore[arg-type]
        begun.append(process)
        return process.ready()

    yield begin
    for process in begun:
        process.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield a cluster of etcd and brokers 1 to 3, all ready."""
    with running(Cluster(tmp_path)) as made:
        yield made
