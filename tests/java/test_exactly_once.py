"""Read, transform and write in transactions: each record once, whichever instance or broker is killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from penstock_e2e.process import Application, wait_until
from penstock_e2e.trio import Trio
from penstock_java import applications

RECORDS = 3_000
LIMIT_S = 120.0


def records(first: int, last: int) -> list[tuple[str | None, str, int]]:
    return [(f"key-{number % 50}", str(number), 0) for number in range(first, last)]


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("java-applications")
def test_each_record_is_copied_once_while_instances_join_and_an_instance_and_a_broker_are_killed(
    brokers_to_kill: Trio, kafka_applications: str, round_number: int, tmp_path: Path
) -> None:
    source, target, group = (f"once-{name}-{round_number}" for name in ("in", "out", "group"))
    brokers_to_kill.create_topics(source, target)

    def start(instance: str, transactional_id: str) -> Application:
        arguments = [brokers_to_kill.bootstrap, source, target, group, transactional_id]
        return applications.start(kafka_applications, "ExactlyOnceCopy", arguments, tmp_path / f"{instance}.log")

    def wait_for_more_than(before: int, *running: Application) -> None:
        """Wait until the target has grown by a tenth of the records; `before` is its previous size."""
        wait_until("further copies", lambda: brokers_to_kill.size(target) > before + RECORDS // 10, LIMIT_S, *running)

    quarter = RECORDS // 4
    with start("first", f"once-{round_number}-first") as first:
        brokers_to_kill.produce(source, records(0, quarter))
        wait_for_more_than(0, first)
        with start("second", f"once-{round_number}-second") as second:
            brokers_to_kill.produce(source, records(quarter, 2 * quarter))
            wait_for_more_than(brokers_to_kill.size(target), first, second)
            brokers_to_kill.produce(source, records(2 * quarter, 3 * quarter))
            before = brokers_to_kill.size(target)
            killed = brokers_to_kill.kill_leader(target)
            wait_for_more_than(before, first, second)
            brokers_to_kill.brokers[killed].start()
            brokers_to_kill.produce(source, records(3 * quarter, RECORDS))
            first.kill()
            # With the same transactional id, the new instance aborts the killed one's transaction at once.
            with start("third", f"once-{round_number}-first") as third:
                wait_until(
                    "a copy of each record",
                    lambda: len(brokers_to_kill.read_committed(target)) >= RECORDS,
                    LIMIT_S,
                    second,
                    third,
                )
                third.stop()
            second.stop()

    expected = Counter((key, f"copy of {number}") for key, number, _ in records(0, RECORDS))
    assert Counter(brokers_to_kill.read_committed(target)) == expected
