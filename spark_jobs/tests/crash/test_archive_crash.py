"""Crash test of archives: after the driver is killed, every row is in the Parquet folder and in the Delta table exactly
once, and after each restart the groups show the progress of the archives.

`python spark_jobs/tests/crash/test_archive_crash.py --kills 30` kills more often than the suite does.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[2] / "broker" / "tests" / "node")]

import pyarrow as pa  # noqa: E402
import pyarrow.dataset as ds  # noqa: E402
from deltalake import DeltaTable  # noqa: E402
from penstock_spark_kit.broker import Broker  # noqa: E402
from penstock_spark_kit.drivers import DEADLINE_S, DriverProcess, complaints  # noqa: E402
from penstock_spark_kit.standing import (  # noqa: E402
    QueryProgress,
    by_partition,
    come_right_with_nothing_new,
    write_numbers,
)
from penstock_spark_kit.topics import make_topic  # noqa: E402

pytestmark = pytest.mark.integration

DRIVER = HERE / "archive_driver.py"
ROWS_FOR_A_KILL = 1_200
MAX_STEPS = 6
MAX_DELAY_S = 1.5
PARTITIONS = 3
TARGETS = ("parquet", "delta")


class Driver(DriverProcess):
    def __init__(self, home: Path, brokers: str, topic: str, direct: str, *more: str) -> None:
        options = ("--brokers", brokers, "--topic", topic, "--home", str(home), "--direct", direct, *more)
        super().__init__(DRIVER, home, *options)

    def reaches(self, home: Path, steps: int, standings: Collection[QueryProgress]) -> None:
        """Wait until `steps` more batches are complete, so that the driver dies at work on slow and fast machines. With
        0 steps it dies at its start."""
        begun = steps_of(home)
        deadline_s = time.monotonic() + DEADLINE_S
        while self.process.poll() is None and steps_of(home) < begun + steps:
            assert time.monotonic() < deadline_s, complaints(home)
            for standing in standings:
                standing.check_not_ahead()
            time.sleep(0.01)


def steps_of(home: Path) -> int:
    """Return the number of completed batches of both queries; it includes other commits of the table, but not its
    creation."""
    records = [int(path.stem) + 1 for path in (home / "parquet" / "_penstock").glob("*/0*.json")]
    versions = len(list((home / "delta" / "_delta_log").glob("*.json")))
    return max(records, default=0) + max(0, versions - 1)


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def rows(home: Path) -> dict[str, Counter[int]]:
    """Return the numbers by target, as pyarrow reads the folder and deltalake the table."""
    found: dict[str, Counter[int]] = {"parquet": Counter(), "delta": Counter()}
    if (home / "parquet").is_dir():
        dataset = ds.dataset(home / "parquet", format="parquet", partitioning="hive")
        if dataset.files:
            found["parquet"] = numbers(dataset.to_table())
    if DeltaTable.is_deltatable(str(home / "delta")):
        found["delta"] = numbers(DeltaTable(home / "delta").to_pyarrow_table())
    return found


def numbers(table: pa.Table) -> Counter[int]:
    return Counter(map(int, table["value"].to_pylist()))


def write(brokers: str, topic: str, first: int, count: int) -> None:
    write_numbers(brokers, topic, PARTITIONS, range(first, first + count))


def killed_at_random(brokers: str, topic: str, home: Path, kills: int, seed: int, direct: str) -> None:
    """Kill drivers at random times. `direct` is the target without a query. Raises AssertionError if a row is missing
    or duplicated, or if a group's offsets are wrong."""
    tell(f"seed {seed}")
    chance = random.Random(seed)
    standings = {
        name: QueryProgress(brokers, topic, PARTITIONS, f"spark-archive-{name}", home / f"checkpoint-{name}")
        for name in TARGETS
    }
    total = ROWS_FOR_A_KILL * kills
    write(brokers, topic, 0, total)
    hit = False
    for number in range(kills):
        if number and chance.random() < 0.5:
            write(brokers, topic, total, ROWS_FOR_A_KILL)
            total += ROWS_FOR_A_KILL
        done = {name: standing.done() for name, standing in standings.items()}
        driver = Driver(home, brokers, topic, direct)
        steps = chance.randint(0, MAX_STEPS) if number else MAX_STEPS // 2
        delay_s = chance.uniform(0, MAX_DELAY_S)
        driver.reaches(home, steps, standings.values())
        if steps:
            for name, standing in standings.items():
                standing.comes_right(done[name])
        time.sleep(delay_s)
        by_itself = driver.process.poll() == 0
        driver.kill()
        found = rows(home)
        for name, standing in standings.items():
            standing.check_not_ahead(by_partition(found[name], PARTITIONS))
            if by_itself:
                standing.check_exact()
                assert standing.lag() == total - len(found[name])
        there = {name: len(numbers) for name, numbers in found.items()}
        hit = hit or any(0 < count < total for count in there.values())
        lags = {name: standing.lag() for name, standing in standings.items()}
        tell(f"kill {number + 1}, {delay_s:.2f} s after step {steps}: {there} of {total} rows, lag {lags}")
    assert hit, "no driver was killed at work"
    ends(Driver(home, brokers, topic, direct), home, standings, total)
    come_right_with_nothing_new(
        standings.values(), lambda: Driver(home, brokers, topic, direct, "--waits"), lambda: complaints(home)
    )


def ends(driver: Driver, home: Path, standings: Mapping[str, QueryProgress], total: int) -> None:
    """Let a driver finish; check that each row exists once and that the groups show no lag."""
    assert driver.end(), complaints(home)
    for name, found in rows(home).items():
        assert found == Counter(range(total)), f"{name}: {len(found)} of {total} rows, {found.most_common(3)}"
    for standing in standings.values():
        standing.check_exact()
        assert standing.lag() == 0


@pytest.mark.timeout(900)
@pytest.mark.xdist_group("spark-crash")
@pytest.mark.parametrize("direct", TARGETS)
def test_a_driver_killed_at_random_moments_archives_each_row_once(
    penstock: Broker, topic: Callable[..., str], tmp_path: Path, direct: str
) -> None:
    killed_at_random(penstock.bootstrap, topic(PARTITIONS), tmp_path, 3, random.randrange(1 << 30), direct)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-archive-crash-") as folder:
        home = Path(folder)
        (home / "broker").mkdir()
        broker = Broker(home / "broker").start()
        try:
            for number, direct in enumerate(TARGETS):
                (home / direct).mkdir()
                make_topic(broker.bootstrap, f"numbers-{direct}", PARTITIONS)
                kills = words.kills * (number + 1) // len(TARGETS) - words.kills * number // len(TARGETS)
                killed_at_random(broker.bootstrap, f"numbers-{direct}", home / direct, kills, words.seed, direct)
        finally:
            broker.stop()
    tell(f"{words.kills} kills, each row once")


if __name__ == "__main__":
    main()
