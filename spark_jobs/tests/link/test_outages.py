"""Brokers are killed while a range is read: the reader waits and continues, without loss or duplicates."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest
from cluster_processes import Cluster
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.reading import records_of
from penstock_spark_kit.topics import ask_admin, make_topic, produce

from penstock.client import TopicPartition
from penstock_spark.link import FetchSizes, Link
from penstock_spark.model.errors import Unavailable
from penstock_spark.model.ranges import LATEST, READ_COMMITTED, READ_UNCOMMITTED, OffsetRange

pytestmark = pytest.mark.integration

LinkTo = Callable[..., Link]
VALUES = [f"{n:06}".encode() * 20 for n in range(2_000)]
SIZES = FetchSizes(partition_bytes=8_000)
MANY_BATCHES = {"batch.num.messages": 50}
RANGE = OffsetRange("t", 0, 0, len(VALUES))


def test_a_broker_that_is_killed_and_comes_back_is_waited_for(own_broker: Broker, link_to: LinkTo) -> None:
    make_topic(own_broker.bootstrap, "t")
    produce(own_broker.bootstrap, "t", VALUES, config=MANY_BATCHES)
    link = link_to(own_broker.bootstrap)
    answers = link.fetch(RANGE, READ_UNCOMMITTED, SIZES)
    seen = records_of(itertools.islice(answers, 3), RANGE)
    own_broker.kill()
    back = threading.Timer(0.5, own_broker.start)
    back.start()
    seen += records_of(answers, RANGE)
    back.join()
    assert [record.value for record in seen] == VALUES
    place = TopicPartition("t", 0)
    assert link.offsets({place: LATEST}, READ_UNCOMMITTED) == {place: len(VALUES)}


def test_every_question_outlasts_a_restart(own_broker: Broker, link_to: LinkTo) -> None:
    make_topic(own_broker.bootstrap, "t")
    produce(own_broker.bootstrap, "t", VALUES[:10])
    link, place = link_to(own_broker.bootstrap), TopicPartition("t", 0)
    link.commit("g", {place: 3})
    own_broker.kill()
    back = threading.Timer(0.3, own_broker.start)
    back.start()
    assert link.offsets({place: LATEST}, READ_COMMITTED) == {place: 10}
    back.join()
    assert link.committed("g", [place]) == {place: (3, "")}
    own_broker.stop()
    own_broker.start()
    link.commit("g", {place: 4})
    assert link.topics(["t"])["t"].partitions == 1
    assert link.committed("g", [place]) == {place: (4, "")}


def test_a_broker_that_stays_away_is_given_up_with_what_was_to_be_read(own_broker: Broker, link_to: LinkTo) -> None:
    make_topic(own_broker.bootstrap, "t")
    produce(own_broker.bootstrap, "t", VALUES, config=MANY_BATCHES)
    answers = link_to(own_broker.bootstrap, give_up_ms=3_000).fetch(RANGE, READ_UNCOMMITTED, SIZES)
    next(iter(answers))
    own_broker.kill()
    with pytest.raises(Unavailable, match=r"t-0 at offset \d+: gave up after 3000 ms"):
        list(answers)


@pytest.mark.timeout(180)
def test_a_leader_that_is_killed_mid_read_is_followed_by_another(three_brokers: Cluster, link_to: LinkTo) -> None:
    bootstrap = three_brokers.bootstrap
    make_topic(bootstrap, "t", 1, {"min.insync.replicas": "2"}, replicas=3)
    produce(bootstrap, "t", VALUES, config=MANY_BATCHES)
    link = link_to(bootstrap)
    answers = link.fetch(RANGE, READ_COMMITTED, SIZES)
    seen = records_of(itertools.islice(answers, 3), RANGE)
    partition = ask_admin(bootstrap, lambda admin: admin.describe_topics(["t"]))["t"].partitions[0]
    three_brokers.brokers[partition.leader].kill()
    seen += records_of(answers, RANGE)
    assert [record.value for record in seen] == VALUES
    link.commit("g", {TopicPartition("t", 0): 5})
    assert link.committed("g", [TopicPartition("t", 0)]) == {TopicPartition("t", 0): (5, "")}
