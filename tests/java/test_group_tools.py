"""Apache Kafka's command-line tools administer groups of each type, and exit with code 0 as they do on Kafka."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, ShareConsumer
from penstock_java.kafka_tools import KafkaTools, produce

BootstrapOf = Callable[[int], str]

pytestmark = pytest.mark.xdist_group("java-3")


@pytest.fixture
def tools(bootstrap_of: BootstrapOf) -> KafkaTools:
    return KafkaTools(bootstrap_of(3))


@pytest.mark.timeout(600)
def test_groups_are_listed_described_reset_and_deleted(tools: KafkaTools) -> None:
    topic, group = "read", "tooled-group"
    tools.run("topics", "--create", "--topic", topic, "--partitions", "1")
    produce(tools.bootstrap, topic, 5)
    reset = ["--reset-offsets", "--group", group, "--topic", topic, "--to-offset", "2"]
    tools.run("consumer-groups", *reset, "--execute")
    assert group in tools.run("consumer-groups", "--list").split()
    described = tools.run("consumer-groups", "--describe", "--group", group, "--offsets")
    row = next(line.split() for line in described.splitlines() if line.split()[:2] == [group, topic])
    assert row[2:6] == ["0", "2", "5", "3"]
    assert "Empty" in tools.run("consumer-groups", "--describe", "--group", group, "--state")
    tools.run("consumer-groups", "--delete-offsets", "--group", group, "--topic", topic)
    tools.run("consumer-groups", "--delete", "--group", group)


@pytest.mark.timeout(600)
def test_a_share_group_is_listed_described_reset_and_deleted(tools: KafkaTools) -> None:
    topic, group = "shared", "tooled-share-group"
    named = ("--group", group)
    tools.run("topics", "--create", "--topic", topic, "--partitions", "1")
    earliest = ("--add-config", "share.auto.offset.reset=earliest")
    tools.run("configs", "--alter", "--entity-type", "groups", "--entity-name", group, *earliest)
    produce(tools.bootstrap, topic, 3)
    limits = ("--max-messages", "3", "--timeout-ms", "60000")
    consumed = tools.run("console-share-consumer", "--topic", topic, *named, *limits)
    assert consumed.split() == ["v0", "v1", "v2"]
    assert row(tools.run("share-groups", "--list", "--state"), group) == ["Empty"]
    assert row(tools.run("groups", "--list", "--share"), group) == ["Share", "share"]
    assert group not in tools.run("groups", "--list", "--consumer")
    assert row(tools.run("share-groups", "--describe", *named), group) == [topic, "0", "3", "0"]
    reset = ("--reset-offsets", *named, "--topic", topic, "--to-earliest")
    assert row(tools.run("share-groups", *reset, "--dry-run"), group) == [topic, "0", "0"]
    assert row(tools.run("share-groups", "--describe", *named), group) == [topic, "0", "3", "0"]
    assert row(tools.run("share-groups", *reset, "--execute"), group) == [topic, "0", "0"]
    assert row(tools.run("share-groups", "--describe", *named, "--offsets"), group) == [topic, "0", "0", "3"]
    assert "Successful" in tools.run("share-groups", "--delete-offsets", *named, "--topic", topic)
    assert "successful" in tools.run("share-groups", "--delete", *named)
    assert group not in tools.run("share-groups", "--list")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_member_of_a_consumer_group_is_described(tools: KafkaTools, protocol: str) -> None:
    topic, group = f"read-by-{protocol}", f"live-{protocol}"
    tools.run("topics", "--create", "--topic", topic, "--partitions", "2")
    produce(tools.bootstrap, topic, 4)
    settings = {"group.protocol": protocol, "auto.offset.reset": "earliest", "client.id": f"reader-{protocol}"}
    consumer = Consumer({"bootstrap.servers": tools.bootstrap, "group.id": group, **settings})
    with polled(consumer, topic):
        assert "Stable" in tools.run("consumer-groups", "--describe", "--group", group, "--state")
        member = row(tools.run("consumer-groups", "--describe", "--group", group, "--members"), group)
        assert member[2:4] == [f"reader-{protocol}", "2"]
        kind = protocol.capitalize()
        assert row(tools.run("groups", "--list", "--consumer"), group) == [kind, "consumer"]
        assert row(tools.run("groups", "--list", "--group-type", protocol), group) == [kind, "consumer"]
        refused = tools.run("consumer-groups", "--delete", "--group", group)
        assert "GroupNotEmptyException" in refused
    assert "Empty" in tools.run("consumer-groups", "--describe", "--group", group, "--state")


@pytest.mark.timeout(600)
def test_the_member_of_a_share_group_is_described(tools: KafkaTools) -> None:
    topic, group = "shared-by-one", "live-share"
    tools.run("topics", "--create", "--topic", topic, "--partitions", "2")
    earliest = ("--add-config", "share.auto.offset.reset=earliest")
    tools.run("configs", "--alter", "--entity-type", "groups", "--entity-name", group, *earliest)
    produce(tools.bootstrap, topic, 4)
    settings = {"bootstrap.servers": tools.bootstrap, "group.id": group, "client.id": "sharer"}
    with polled(ShareConsumer(settings), topic):
        assert "Stable" in tools.run("share-groups", "--describe", "--group", group, "--state")
        member = row(tools.run("share-groups", "--describe", "--group", group, "--members"), group)
        assert member[2:] == ["sharer", "2", f"{topic}:0,1"]
        reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-latest", "--execute")
        refused = tools.attempt("share-groups", *reset)
        assert "not empty" in (refused.stdout + refused.stderr).lower()


def row(table: str, group: str) -> list[str]:
    """Return the columns after the group's name in the only line that starts with it."""
    (found,) = [line.split() for line in table.splitlines() if line.split()[:1] == [group]]
    return found[1:]


@contextlib.contextmanager
def polled(consumer: Consumer | ShareConsumer, topic: str) -> Iterator[None]:
    """Let a thread poll the consumer; the block starts after its first record."""
    consumer.subscribe([topic])
    started, ended = threading.Event(), threading.Event()

    def poll() -> None:
        while not ended.is_set():
            if consumer.poll(0.5):
                started.set()
        consumer.close()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        assert started.wait(60), f"no record of {topic} arrived"
        yield
    finally:
        ended.set()
        thread.join(60)
