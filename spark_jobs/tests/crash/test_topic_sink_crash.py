"""Crash test of the topic sink: after the driver is killed, every row is in the topic exactly once, as another client
reads it, and after each restart the group of the query shows its lag.

`python spark_jobs/tests/crash/test_topic_sink_crash.py --kills 30` kills more often than the suite does.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BROKER_TESTS = HERE.parents[2] / "broker" / "tests" / "node"
sys.path[:0] = [str(HERE.parent), str(BROKER_TESTS)]

from penstock_spark_kit.batches_written import values_of, wanted  # noqa: E402
from penstock_spark_kit.broker import Broker  # noqa: E402
from penstock_spark_kit.drivers import DEADLINE_S, DriverProcess, complaints  # noqa: E402
from penstock_spark_kit.standing import (  # noqa: E402
    QueryProgress,
    by_partition,
    come_right_with_nothing_new,
    write_numbers,
)
from penstock_spark_kit.topics import eventually, make_topic  # noqa: E402

from penstock_spark.progress.offsets import Offsets  # noqa: E402

pytestmark = pytest.mark.integration

DRIVER = HERE / "topic_sink_driver.py"
ROWS_OF_A_FILE = 400
ROWS_FOR_A_KILL = 4 * ROWS_OF_A_FILE
MAX_DELAY_S = 4.0
QUIET_EVERY = 5
PARTITIONS = 3


class Driver(DriverProcess):
    def __init__(self, home: Path, bootstrap: str, topic: str, *more: str) -> None:
        self.checkpoint = home / "spark" / "checkpoint"
        options = ["--home", str(home / "spark"), *more]
        super().__init__(DRIVER, home, "--bootstrap", bootstrap, "--topic", topic, *options)

    def wait_for(self, folder: str, standing: QueryProgress, done: Offsets) -> None:
        """Wait until one more batch is planned (`offsets`) or complete (`commits`); the driver is then at work on a
        batch."""
        place = self.checkpoint / folder
        before, deadline_s = len(list(place.glob("[0-9]*"))), time.monotonic() + DEADLINE_S
        while folder != "nothing" and len(list(place.glob("[0-9]*"))) <= before and self.process.poll() is None:
            assert time.monotonic() < deadline_s, "the driver does nothing"
            standing.check_not_ahead()
            time.sleep(0.02)
        if folder != "nothing":
            standing.comes_right(done)


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def send_numbers(bootstrap: str, topic: str, first: int, count: int) -> int:
    """Return the next number."""
    write_numbers(bootstrap, topic, PARTITIONS, range(first, first + count))
    return first + count


def fill(folder: Path, files: int) -> None:
    folder.mkdir(parents=True)
    for number in range(files):
        first = number * ROWS_OF_A_FILE
        (folder / f"{number:04}.txt").write_text("\n".join(map(str, range(first, first + ROWS_OF_A_FILE))))


def killed_at_random(bootstrap: str, source: str, topic: str, home: Path, kills: int, seed: int) -> None:
    """Kill drivers at random times. Raises AssertionError if a row is missing or duplicated, or if the group shows a
    wrong lag."""
    tell(f"seed {seed}")
    chance = random.Random(seed)
    standing = QueryProgress(bootstrap, source, PARTITIONS, f"{source}-group", home / "spark" / "checkpoint")

    def driver(*more: str) -> Driver:
        return Driver(home, bootstrap, topic, "--source", source, "--group", standing.group, *more)

    def there() -> list[int]:
        return [int(value) for value in values_of(bootstrap, topic)]

    def visible() -> None:
        done = sum(standing.done().values())
        eventually("the end of the last transaction is visible", lambda: len(there()) >= done)

    def ended(total: int) -> None:
        standing.check_exact()
        visible()
        assert standing.lag() == total - len(there())

    total = send_numbers(bootstrap, source, 0, ROWS_FOR_A_KILL)
    behind = 0
    for number in range(kills):
        if number % QUIET_EVERY == QUIET_EVERY - 1 or number == kills - 1:
            assert driver().end(), complaints(home)
            ended(total)
            come_right_with_nothing_new([standing], lambda: driver("--waits"), lambda: complaints(home))
            tell(f"kill {number + 1}, with nothing new: the lag is 0 again")
            continue
        total = send_numbers(bootstrap, source, total, chance.choice((0, 1, 2)) * ROWS_FOR_A_KILL)
        done = standing.done()
        alive = driver()
        if chance.random() < 0.5:
            total = send_numbers(bootstrap, source, total, ROWS_FOR_A_KILL // 2)
        alive.wait_for(chance.choice(["offsets", "offsets", "commits", "nothing"]), standing, done)
        delay_s = chance.uniform(0, MAX_DELAY_S)
        time.sleep(delay_s)
        by_itself = alive.process.poll() == 0
        alive.kill()
        if by_itself:
            ended(total)
        visible()
        standing.check_not_ahead(by_partition(there(), PARTITIONS))
        behind += standing.shown() != standing.done()
        tell(f"kill {number + 1} after {delay_s:.2f} s: {len(there())} of {total} rows")
    tell(f"groups left behind by a kill: {behind}")
    total = send_numbers(bootstrap, source, total, PARTITIONS)
    assert driver().end(), complaints(home)
    assert values_of(bootstrap, topic) == wanted(total)
    ended(total)


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark-crash")
def test_a_driver_killed_at_random_moments_writes_each_row_once(
    penstock: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    killed_at_random(penstock.bootstrap, topic(PARTITIONS), topic(3), tmp_path, 3, random.randrange(1 << 30))


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark-crash")
def test_a_driver_killed_between_the_commit_and_the_checkpoint_writes_each_row_once(
    penstock: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name, flag = topic(3), tmp_path / "has-died"
    fill(tmp_path / "in", 8)
    more = ("--files", str(tmp_path / "in"), "--dies-after-commit", str(flag))
    assert not Driver(tmp_path, penstock.bootstrap, name, *more).end()
    assert flag.exists()
    written = values_of(penstock.bootstrap, name)
    assert len(written) == len(set(written)) == 4 * ROWS_OF_A_FILE
    commits = tmp_path / "spark" / "checkpoint" / "commits"
    assert sorted(path.name for path in commits.iterdir() if path.name.isdecimal()) == ["0"]
    assert Driver(tmp_path, penstock.bootstrap, name, *more).end(), complaints(tmp_path)
    assert values_of(penstock.bootstrap, name) == wanted(8 * ROWS_OF_A_FILE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "broker").mkdir()
        broker = Broker(home / "broker").start()
        try:
            make_topic(broker.bootstrap, "numbers", PARTITIONS)
            make_topic(broker.bootstrap, "crash", 3)
            killed_at_random(broker.bootstrap, "numbers", "crash", home, arguments.kills, arguments.seed)
        finally:
            broker.stop()
    tell(f"{arguments.kills} kills: every row exactly once")


if __name__ == "__main__":
    main()
