"""Delivery through a crash of kcat: records count as handled once they are read from its pipe."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable

from penstock_e2e.drivers import DRIVERS, clients, kcat
from penstock_e2e.drivers.confluent import ConfluentAdmin
from penstock_e2e.member import StartMember
from penstock_e2e.model import Driver, MakeTopic, MemberSpec, Partition, ProducerSpec, Record, eventually

BASE_MS = 1_700_000_000_000


def _committed(admin: ConfluentAdmin, group: str, topic: str) -> int:
    return sum(admin.group_offsets(group, topic, 1).values())


def _values(first: int, last: int) -> list[bytes]:
    return [f"value-{index}".encode() for index in range(first, last)]


def _records(values: list[bytes]) -> list[Record]:
    return [Record(value, partition=0) for value in values]


@clients("text-only")
def test_at_least_once_repeats_what_was_not_committed_before_the_crash_and_loses_nothing(
    client: Driver,
    setup_admin: ConfluentAdmin,
    topic: str,
    start_member: StartMember,
    fresh_name: Callable[[], str],
    crash_session_ms: int,
) -> None:
    group, values = fresh_name(), _values(0, 100)
    client.produce(topic, _records(values[:50]))
    commits = start_member(group, topic, commit="auto")
    commits.wait("the first half", lambda m: len(m.records) == 50)
    commits.leave()
    assert _committed(setup_admin, group, topic) == 50
    client.produce(topic, _records(values[50:]))
    crashes = start_member(group, topic, commit="none", session_timeout_ms=crash_session_ms)
    crashes.wait("the second half", lambda m: len(m.records) == 50)
    crashes.kill()
    takes_over = start_member(group, topic, commit="auto")
    takes_over.wait("the second half again", lambda m: len(m.records) == 50)
    assert Counter(commits.values + crashes.values + takes_over.values) == Counter(values + values[50:])


@clients("text-only")
def test_at_most_once_loses_what_was_committed_before_the_crash_and_repeats_nothing(
    client: Driver,
    bootstrap: str,
    setup_admin: ConfluentAdmin,
    crash_session_ms: int,
    topic: str,
    start_member: StartMember,
    fresh_name: Callable[[], str],
) -> None:
    """kcat commits records that it wrote to a pipe; those not read from the pipe before its crash are not handled."""
    group, values = fresh_name(), _values(0, 100)
    client.produce(topic, _records(values[:50]), ProducerSpec(acks="0"))
    spec = MemberSpec("kcat", bootstrap, group, (topic,), crash_session_ms, commit="auto")
    with subprocess.Popen(kcat.member_command(spec), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as crashes:
        try:
            eventually("all to be committed", lambda: _committed(setup_admin, group, topic) == 50)
        finally:
            crashes.kill()
    client.produce(topic, _records(values[50:]))
    takes_over = start_member(group, topic, commit="auto")
    takes_over.wait("the second half", lambda m: len(m.records) == 50)
    assert takes_over.values == values[50:]


@clients("text-only")
def test_reading_starts_at_a_time(client: Driver, bootstrap: str, topic: str) -> None:
    records = [Record(f"{i}".encode(), partition=0, timestamp_ms=BASE_MS + i * 1000) for i in range(10)]
    DRIVERS["confluent"](bootstrap).produce(topic, records, ProducerSpec(linger_ms=100))
    options = ["-q", "-J", "-c", "4", "-t", topic, "-p", "0", "-o", f"s@{BASE_MS + 5500}"]
    done = subprocess.run(
        [kcat.executable(), "-b", bootstrap, "-C", *options], capture_output=True, timeout=30, check=True
    )
    messages = [kcat.parse_message(line) for line in done.stdout.decode().splitlines()]
    assert [m.offset for m in messages] == [6, 7, 8, 9]
    assert [m.timestamp_ms for m in messages] == [BASE_MS + i * 1000 for i in range(6, 10)]


@clients("text-only")
def test_the_metadata_names_brokers_topics_partitions_and_leaders(
    client: Driver, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(3)
    command = [kcat.executable(), "-b", bootstrap, "-L", "-J", "-t", topic]
    done = subprocess.run(command, capture_output=True, timeout=30, check=True)
    metadata = json.loads(done.stdout)
    brokers = {broker["id"]: broker["name"] for broker in metadata["brokers"]}
    assert brokers[metadata["controllerid"]]
    (described,) = metadata["topics"]
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    for partition in described["partitions"]:
        replicas = {replica["id"] for replica in partition["replicas"]}
        assert {partition["leader"]} <= replicas <= set(brokers)
        assert {replica["id"] for replica in partition["isrs"]} == replicas
        assert len(replicas) == min(3, len(brokers))


@clients("text-only")
def test_a_static_member_killed_for_good_is_replaced_when_its_session_ends(
    client: Driver,
    bootstrap: str,
    make_topic: MakeTopic,
    start_member: StartMember,
    fresh_name: Callable[[], str],
    crash_session_ms: int,
) -> None:
    topic, group = make_topic(2), fresh_name()
    both = frozenset({Partition(topic, 0), Partition(topic, 1)})
    stays = start_member(group, topic, instance_id="stays")
    dies = start_member(group, topic, instance_id="dies", session_timeout_ms=crash_session_ms)
    stays.wait("one each", lambda m: m.assignment and dies.assignment and m.assignment | dies.assignment == both)
    dies.kill()
    stays.wait("both", lambda m: m.assignment == both)
    late = start_member(group, topic, instance_id="dies")
    late.wait("one each", lambda m: m.assignment and stays.assignment and m.assignment | stays.assignment == both)
