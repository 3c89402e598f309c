"""Kafka Streams with exactly-once: joins, windows and a repartition survive a kill of an instance and of a broker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from penstock_e2e.process import Application, wait_until
from penstock_e2e.trio import Trio
from penstock_java import applications

USERS = {f"user-{number}": ("de", "fr", "jp")[number % 3] for number in range(12)}
VISITS = 1_500
MINUTES = 3
BASE_MS = 1_700_000_040_000
"""The start of a minute."""
STEP_MS = MINUTES * 60_000 // VISITS
PROGRESS_LIMIT_S = 120.0


def visits(first: int, last: int) -> list[tuple[str, str, int]]:
    """Return user, number of the visit, and time in ms, in order of time; the users take turns."""
    users = list(USERS)
    return [(users[n % len(users)], str(n), BASE_MS + n * STEP_MS) for n in range(first, last)]


@pytest.mark.timeout(600)
@pytest.mark.xdist_group("java-applications")
def test_each_visit_is_joined_and_counted_once_while_an_instance_and_a_broker_are_killed(
    brokers_to_kill: Trio, kafka_applications: str, round_number: int, tmp_path: Path
) -> None:
    prefix = f"streams-{round_number}"
    names = [f"{prefix}-{name}" for name in ("visits", "orders", "users", "by-country", "counts", "pairs")]
    source, orders, users, by_country, counts, pairs = names
    brokers_to_kill.create_topics(*names)
    # Before the first visit: of records with the same time, Kafka Streams may process the visit first and drop it.
    brokers_to_kill.produce(users, [(user, country, BASE_MS - 1) for user, country in USERS.items()])

    def start(instance: str) -> Application:
        state = tmp_path / instance
        state.mkdir()
        arguments = [brokers_to_kill.bootstrap, prefix, str(state)]
        return applications.start(kafka_applications, "VisitsApp", arguments, tmp_path / f"{instance}.log")

    def produce(first: int, last: int) -> None:
        brokers_to_kill.produce(source, visits(first, last))
        brokers_to_kill.produce(orders, visits(first, last))

    def wait_for(number: int, *running: Application) -> None:
        wait_until(
            f"{number} visits joined",
            lambda: brokers_to_kill.size(by_country) >= number and brokers_to_kill.size(pairs) >= number,
            PROGRESS_LIMIT_S,
            *running,
        )

    third = VISITS // 3
    with start("first") as first, start("second") as second:
        produce(0, third)
        wait_for(third // 2, first, second)
        first.kill()
        with start("third") as replacement:
            produce(third, 2 * third)
            wait_for(third + third // 2, second, replacement)
            killed = brokers_to_kill.kill_leader(by_country)
            produce(2 * third, VISITS)
            brokers_to_kill.brokers[killed].start()
            wait_until(
                "all visits in each output",
                lambda: (
                    len(brokers_to_kill.read_committed(by_country)) >= VISITS
                    and len(brokers_to_kill.read_committed(pairs)) >= VISITS
                    and sum(latest_counts(brokers_to_kill, counts).values()) >= VISITS
                ),
                PROGRESS_LIMIT_S,
                second,
                replacement,
            )
            second.stop()
            replacement.stop()

    expected = visits(0, VISITS)
    assert Counter(brokers_to_kill.read_committed(by_country)) == Counter(
        (user, f"{USERS[user]}:{number}") for user, number, _ in expected
    )
    assert Counter(brokers_to_kill.read_committed(pairs)) == Counter((user, number) for user, number, _ in expected)
    windows = Counter(f"{USERS[user]}@{time_ms - time_ms % 60_000}" for user, _, time_ms in expected)
    assert latest_counts(brokers_to_kill, counts) == windows


def latest_counts(brokers: Trio, topic: str) -> Counter[str]:
    """Return the last count of each country and minute."""
    return Counter({key or "": int(value) for key, value in brokers.read_committed(topic)})
