"""Nothing outlives its use: after churn, brokers hold as many objects as before.

`make soak ARGS="--minutes 30"` churns for longer.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from etcd_process import EtcdCluster
from penstock_soak import brokers
from penstock_soak.churn import Churn

WARM_ROUNDS = 10
ROUNDS = 24
"""Rounds in which a leak of one object each exceeds `SLACK`."""
CHANNEL, CHANNELS = "grpc.aio._channel.Channel", 2 * len(brokers.BROKERS)
"""Each broker has two connections to etcd; the one for its lease is created at the first renewal."""
QUIET_S = 90.0
"""Time limit for brokers on a slow machine to release all objects; an idle machine needs a second or two."""
SLACK = 20
"""Tolerated growth per type, for requests in flight and connections between brokers."""
OTHER_SLACK, OTHER_SHARE = 60, 0.03
"""The same for types that are not the broker's own, plus a share of the previous count."""


class Counted:
    """The process with the brokers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the brokers have ended"
        return line

    def counts(self, command: str = "count") -> dict[str, int]:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        found: dict[str, int] = json.loads(self.line())
        return found


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    (tmp_path / "etcd").mkdir()
    with EtcdCluster(tmp_path / "etcd") as cluster:
        yield cluster


@pytest.fixture
def counted(etcd: EtcdCluster, tmp_path: Path) -> Iterator[Counted]:
    command = [sys.executable, brokers.__file__, etcd.endpoints[0], str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Counted(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def more(before: dict[str, int], now: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Return the types with more objects than before."""
    found = {}
    for name, count in now.items():
        known = before.get(name, 0)
        slack = SLACK if name.startswith("penstock.") else OTHER_SLACK + OTHER_SHARE * known
        if name != "resident bytes" and count > known + slack:
            found[name] = (known, count)
    return found


async def settled(counted: Counted) -> dict[str, int]:
    """Return the counts once they no longer fall."""
    lowest, since_s = counted.counts(), time.monotonic()
    begun_s = since_s
    while time.monotonic() - since_s < 3.0 and time.monotonic() - begun_s < QUIET_S:
        await asyncio.sleep(0.5)
        now = counted.counts()
        if sum(now.values()) - now["resident bytes"] < sum(lowest.values()) - lowest["resident bytes"] - SLACK:
            lowest, since_s = now, time.monotonic()
    return lowest


@pytest.mark.timeout(3600)
async def test_after_churn_of_everything_as_many_objects_are_alive_as_before(
    counted: Counted, request: pytest.FixtureRequest
) -> None:
    churn = Churn(json.loads(counted.line()), seed=1)
    await churn.begin()
    try:
        warm_rounds = 0
        while warm_rounds < WARM_ROUNDS or counted.counts().get(CHANNEL, 0) < CHANNELS:
            await churn.round()
            warm_rounds += 1
        churn.close()
        before = await settled(counted)
        until_s = time.monotonic() + 60 * float(request.config.getoption("--minutes"))
        rounds = 0
        while rounds < ROUNDS or time.monotonic() < until_s:
            await churn.round()
            rounds += 1
    finally:
        churn.close()
    deadline_s = time.monotonic() + QUIET_S
    while (grown := more(before, counted.counts())) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.5)
    after = counted.counts()
    print(f"{rounds} rounds, resident {before['resident bytes'] >> 20} MB, then {after['resident bytes'] >> 20} MB")
    assert not grown, f"(before, after {rounds} rounds): {grown}"
