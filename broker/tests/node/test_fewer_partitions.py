"""A topic gets fewer partitions while clients write and read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from cluster_processes import Cluster
from confluent_kafka.admin import AdminClient, NewTopic
from node_kit import MakeProcess, Process
from shrink_kit import (
    GroupReader,
    LibrdkafkaWriter,
    PenstockWriter,
    check_received,
    set_partitions,
    shrink_of,
    wait_for,
    wait_for_state,
    wait_until_received,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TOPIC = "flights"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Yield a stack whose threads are stopped at the end of the test, also of a failed one."""
    with ExitStack() as made:
        yield made


def create(bootstrap: str, partitions: int, replicas: int = 1) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {"min.insync.replicas": str(min(replicas, 2))}
    admin.create_topics([NewTopic(TOPIC, partitions, replicas, config=settings)])[TOPIC].result()
    return admin


def partition_count(admin: AdminClient) -> int:
    return len(admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions)


def test_each_record_is_received_once_while_a_topic_shrinks_from_8_to_3(up: MakeProcess, stack: ExitStack) -> None:
    bootstrap = f"127.0.0.1:{up('--set', 'group.initial.rebalance.delay.ms=0').port}"
    admin = create(bootstrap, 8)
    writers = [LibrdkafkaWriter("a", bootstrap, TOPIC), PenstockWriter("b", bootstrap, TOPIC)]
    readers = [GroupReader("g", bootstrap, TOPIC) for _ in range(2)]
    for each in (*writers, *readers):
        stack.callback(each.stop)
    wait_for("the reader receives", lambda: len(readers[0].found) > 100)
    set_partitions(bootstrap, TOPIC, 3)
    wait_for_state(bootstrap, TOPIC, "retired")
    assert partition_count(admin) == 3
    writers[0].wait_for_more()
    for writer in writers:
        writer.stop()
    check_received(writers, wait_until_received(writers, readers))


def test_a_cancelled_reduction_shows_neither_too_much_nor_too_little(up: MakeProcess, stack: ExitStack) -> None:
    """A second group that has stopped keeps the partitions from being hidden until the reduction is cancelled."""
    bootstrap = f"127.0.0.1:{up('--set', 'group.initial.rebalance.delay.ms=0').port}"
    admin = create(bootstrap, 6)
    writers = [LibrdkafkaWriter("a", bootstrap, TOPIC), PenstockWriter("b", bootstrap, TOPIC)]
    stopped, reader = (GroupReader(group, bootstrap, TOPIC) for group in ("stopped", "g"))
    for each in (*writers, stopped, reader):
        stack.callback(each.stop)
    wait_for("the readers receive", lambda: min(len(stopped.found), len(reader.found)) > 100)
    stopped.stop()
    set_partitions(bootstrap, TOPIC, 2)
    wait_for_state(bootstrap, TOPIC, "draining")
    writers[0].wait_for_more()
    set_partitions(bootstrap, TOPIC, 6)
    wait_for("the partitions are open again", lambda: shrink_of(bootstrap, TOPIC) is None)
    writers[0].wait_for_more()
    for writer in writers:
        writer.stop()
    assert partition_count(admin) == 6
    check_received(writers, wait_until_received(writers, [reader]))
    late = GroupReader("late", bootstrap, TOPIC)
    stack.callback(late.stop)
    check_received(writers, wait_until_received(writers, [late]))


def test_a_topic_grows_again_beyond_its_earlier_partitions_after_a_restart(up: MakeProcess, stack: ExitStack) -> None:
    broker = up("--set", "group.initial.rebalance.delay.ms=0")
    bootstrap = f"127.0.0.1:{broker.port}"
    create(bootstrap, 4)
    first = LibrdkafkaWriter("a", bootstrap, TOPIC)
    reader = GroupReader("g", bootstrap, TOPIC)
    for each in (first, reader):
        stack.callback(each.stop)
    wait_for("the reader receives", lambda: len(reader.found) > 100)
    set_partitions(bootstrap, TOPIC, 2)
    wait_for_state(bootstrap, TOPIC, "retired")
    first.stop()
    broker.stop()
    restarted = Process(
        broker.data.parent,
        "--set",
        "group.initial.rebalance.delay.ms=0",
        listen=("--port", str(broker.port), "--http-port", "-1"),
    ).ready()
    stack.callback(restarted.kill)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assert partition_count(admin) == 2
    set_partitions(bootstrap, TOPIC, 6)
    wait_for("the partitions are open again", lambda: shrink_of(bootstrap, TOPIC) is None)
    assert partition_count(admin) == 6
    second = LibrdkafkaWriter("b", bootstrap, TOPIC)
    stack.callback(second.stop)
    wait_for("the second writer's values are acknowledged", lambda: len(second.acknowledged) > 1_000)
    second.stop()
    check_received([first, second], wait_until_received([first, second], [reader]))


def test_leaders_of_sealed_and_remaining_partitions_die_while_they_relay(cluster: Cluster, stack: ExitStack) -> None:
    admin = create(cluster.bootstrap, 8, replicas=3)
    writers = [LibrdkafkaWriter("a", cluster.bootstrap, TOPIC), PenstockWriter("b", cluster.bootstrap, TOPIC)]
    modern = {"group.protocol": "consumer"}
    readers = [
        GroupReader("classic", cluster.bootstrap, TOPIC),
        GroupReader("modern", cluster.bootstrap, TOPIC, **modern),
    ]
    for each in (*writers, *readers):
        stack.callback(each.stop)
    wait_for("the readers receive", lambda: min(len(reader.found) for reader in readers) > 100)
    partitions = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions
    set_partitions(cluster.bootstrap, TOPIC, 3)
    for index in (7, 0):
        leader = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions.get(index, partitions[index]).leader
        cluster.brokers[leader].kill()
        writers[0].wait_for_more()
        cluster.start(leader)
    wait_for_state(cluster.bootstrap, TOPIC, "retired")
    writers[0].wait_for_more()
    for writer in writers:
        writer.stop()
    for reader in readers:
        check_received(writers, wait_until_received(writers, [reader]))
