"""How and when a broker is killed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from penstock_crash.broker import DEADLINE_S, Broker
from penstock_crash.loads import Load

WORK_BETWEEN = 30
"""Minimum of acknowledgements of each load between two kills, so that each kill hits a broker under load."""
LONGEST_WAIT_S = 0.6
DURING_START_S = 0.5
"""Maximum delay before a starting broker is killed again; most starts take longer."""
DOUBLE_KILLS = 0.25


def kill_at_random(broker: Broker, rng: random.Random) -> None:
    time.sleep(rng.uniform(0, LONGEST_WAIT_S))
    broker.kill()


def kill_while_starting(broker: Broker, rng: random.Random) -> None:
    """Start the broker and kill it during the start or just after it."""
    broker.spawn()
    time.sleep(rng.uniform(0, DURING_START_S))
    broker.kill()


def kill_when_seen(broker: Broker, rng: random.Random, pattern: str, later_s: float) -> None:
    """Kill the broker as soon as a file matches a glob below the data directory, or a little later."""
    deadline = time.monotonic() + DEADLINE_S
    while next(broker.data.glob(pattern), None) is None:
        broker.check_alive()
        assert time.monotonic() < deadline, f"no {pattern} appears in {broker.data}"
        time.sleep(0.0005)
    time.sleep(rng.choice([0, rng.uniform(0, later_s)]))
    broker.kill()


def repeatedly(
    broker: Broker,
    loads: Sequence[tuple[Load, str]],
    kills: int,
    rng: random.Random,
    kill: Callable[[Broker, random.Random], None] = kill_at_random,
    check: Callable[[], None] = lambda: None,
    work: int = WORK_BETWEEN,
) -> None:
    """Kill the broker `kills` times, each time under load. `loads` pairs each load with its progress entry kind.

    `check` is called after each restart, while the loads continue. The acknowledgements it checks must be older than
    the kill, so this function reads the journals just before it.
    """
    killed = 0
    while killed < kills:
        for load, progress in loads:
            load.wait_for(progress, work)
        kill(broker, rng)
        killed += 1
        for load, _ in loads:
            load.read()
        while killed < kills and rng.random() < DOUBLE_KILLS:
            kill_while_starting(broker, rng)
            killed += 1
        broker.start()
        check()
        for load, _ in loads:
            load.check_alive()
    for load, progress in loads:
        load.wait_for(progress, work)
