"""The driver is killed; in the end every row is in the topic exactly once, as another client reads it.

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

HERE = Path(__file__).parent
BROKER_TESTS = HERE.parents[2] / "broker" / "tests" / "node"
sys.path[:0] = [str(HERE.parent), str(BROKER_TESTS)]

import pytest  # noqa: E402
from penstock_spark_kit.batches_written import values_of, wanted  # noqa: E402
from penstock_spark_kit.broker import Broker  # noqa: E402
from penstock_spark_kit.drivers import DEADLINE_S, DriverProcess, complaints  # noqa: E402
from penstock_spark_kit.topics import make_topic  # noqa: E402

DRIVER = HERE / "topic_sink_driver.py"
ROWS_OF_A_FILE = 400
MAX_DELAY_S = 4.0


class Driver(DriverProcess):
    def __init__(self, home: Path, bootstrap: str, topic: str, *more: str) -> None:
        self.checkpoint = home / "spark" / "checkpoint"
        options = ["--files", str(home / "in"), "--home", str(home / "spark"), *more]
        super().__init__(DRIVER, home, "--bootstrap", bootstrap, "--topic", topic, *options)

    def wait_for(self, folder: str) -> None:
        """Until one more batch is planned (`offsets`) or done (`commits`): then it is in the middle of its work."""
        place = self.checkpoint / folder
        before, deadline_s = len(list(place.glob("[0-9]*"))), time.monotonic() + DEADLINE_S
        while folder != "nothing" and len(list(place.glob("[0-9]*"))) <= before and self.process.poll() is None:
            assert time.monotonic() < deadline_s, "the driver does nothing"
            time.sleep(0.02)


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def fill(folder: Path, files: int) -> None:
    folder.mkdir(parents=True)
    for number in range(files):
        first = number * ROWS_OF_A_FILE
        (folder / f"{number:04}.txt").write_text("\n".join(map(str, range(first, first + ROWS_OF_A_FILE))))


def killed_at_random(bootstrap: str, topic: str, home: Path, kills: int, seed: int) -> None:
    """Raises AssertionError where a row lacks or is there twice."""
    tell(f"seed {seed}")
    chance = random.Random(seed)
    files = 4 * kills
    fill(home / "in", files)
    for number in range(kills):
        driver = Driver(home, bootstrap, topic)
        driver.wait_for(chance.choice(["offsets", "offsets", "commits", "nothing"]))
        delay_s = chance.uniform(0, MAX_DELAY_S)
        time.sleep(delay_s)
        driver.kill()
        there = len(values_of(bootstrap, topic))
        tell(f"kill {number + 1} after {delay_s:.2f} s: {there} of {files * ROWS_OF_A_FILE} rows")
    assert Driver(home, bootstrap, topic).end(), complaints(home)
    assert values_of(bootstrap, topic) == wanted(files * ROWS_OF_A_FILE)


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark")
def test_a_driver_killed_at_random_moments_writes_each_row_once(
    penstock: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    killed_at_random(penstock.bootstrap, topic(3), tmp_path, 3, random.randrange(1 << 30))


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark")
def test_a_driver_killed_between_the_commit_and_the_checkpoint_writes_each_row_once(
    penstock: Broker, topic: Callable[..., str], tmp_path: Path
) -> None:
    name, flag = topic(3), tmp_path / "has-died"
    fill(tmp_path / "in", 8)
    more = ("--dies-after-commit", str(flag))
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
            make_topic(broker.bootstrap, "crash", 3)
            killed_at_random(broker.bootstrap, "crash", home, arguments.kills, arguments.seed)
        finally:
            broker.stop()
    tell(f"{arguments.kills} kills: every row exactly once")


if __name__ == "__main__":
    main()
