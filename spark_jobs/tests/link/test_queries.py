"""Single queries: topics, offsets, committed offsets of groups. On a real broker."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.topics import (
    MakeTopic,
    Rec,
    add_partitions,
    ask_admin,
    delete_records,
    delete_topic,
    eventually,
    make_topic,
    produce,
)

from penstock.client import ErrorCode, TopicPartition
from penstock.client import topic_queries as queries
from penstock.client.cluster import ClusterConnections
from penstock.client.metadata import MetadataCache
from penstock_spark.link import Link
from penstock_spark.model.connection import ConnectionOptions, Sasl, Tls
from penstock_spark.model.errors import Refused, Unavailable
from penstock_spark.model.ranges import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED

pytestmark = pytest.mark.integration

Name = Callable[[], str]
LinkTo = Callable[..., Link]


def test_topics_are_told_with_partitions_and_id(link: Link, topic: MakeTopic) -> None:
    one, three = topic(), topic(3)
    found = link.topics([one, three, "there-is-none"])
    assert {name: t.partitions for name, t in found.items()} == {one: 1, three: 3}
    assert found[one].topic_id is not None
    assert found[one].topic_id != found[three].topic_id


def test_asking_for_a_topic_does_not_create_it(link: Link, penstock: Broker, fresh_name: Name) -> None:
    name = fresh_name()
    assert link.topics([name]) == {}
    assert link.offsets({TopicPartition(name, 0): LATEST}, READ_UNCOMMITTED) == {}
    assert name not in ask_admin(penstock.bootstrap, lambda admin: admin.describe_topics_many())


def test_all_topics_are_told_but_internal_ones(link: Link, penstock: Broker, topic: MakeTopic) -> None:
    name = topic()
    assert name in link.topics(None)
    assert not any(found.startswith("__") for found in link.topics(None))


def test_a_name_that_cannot_be_one_is_refused(link: Link) -> None:
    with pytest.raises(Refused, match="letters, digits"):
        link.topics(["no such/name"])


def test_partitions_that_are_added_are_seen_at_once(link: Link, penstock: Broker, topic: MakeTopic) -> None:
    name = topic()
    assert link.topics([name])[name].partitions == 1
    add_partitions(penstock.bootstrap, name, 3)
    assert link.topics([name])[name].partitions == 3
    assert link.offsets({TopicPartition(name, 2): LATEST}, READ_UNCOMMITTED) == {TopicPartition(name, 2): 0}


def test_offsets_are_where_partitions_begin_end_and_pass_a_time(link: Link, penstock: Broker, topic: MakeTopic) -> None:
    name = topic(2)
    produce(penstock.bootstrap, name, [Rec(b"v", partition=0, timestamp_ms=1000 + n) for n in range(10)])
    delete_records(penstock.bootstrap, name, {0: 3})
    zero, one, none = TopicPartition(name, 0), TopicPartition(name, 1), TopicPartition(name, 9)

    def ask(what: int) -> dict[TopicPartition, int]:
        return dict(link.offsets({zero: what, one: what, none: what}, READ_UNCOMMITTED))

    assert ask(EARLIEST) == {zero: 3, one: 0}
    assert ask(LATEST) == {zero: 10, one: 0}
    assert ask(1007) == {zero: 7, one: -1}
    assert ask(2000) == {zero: -1, one: -1}


def test_the_end_for_readers_of_committed_data_is_the_last_stable_offset(
    link: Link, penstock: Broker, topic: MakeTopic
) -> None:
    name = topic()
    place = TopicPartition(name, 0)
    produce(penstock.bootstrap, name, [b"v"] * 4)
    producer = Producer({"bootstrap.servers": penstock.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"pending")
    assert producer.flush(30) == 0
    assert link.offsets({place: LATEST}, READ_COMMITTED) == {place: 4}
    assert link.offsets({place: LATEST}, READ_UNCOMMITTED) == {place: 5}
    producer.abort_transaction(30)
    eventually("the marker is written", lambda: link.offsets({place: LATEST}, READ_COMMITTED) == {place: 6})


def test_a_topic_that_was_deleted_has_no_offsets(link: Link, penstock: Broker, topic: MakeTopic) -> None:
    name = topic()
    place = TopicPartition(name, 0)
    assert link.offsets({place: LATEST}, READ_UNCOMMITTED) == {place: 0}
    delete_topic(penstock.bootstrap, name)
    assert link.offsets({place: LATEST}, READ_UNCOMMITTED) == {}


def test_what_a_group_commits_is_read_back(link: Link, penstock: Broker, topic: MakeTopic, fresh_name: Name) -> None:
    name, group = topic(3), fresh_name()
    places = [TopicPartition(name, p) for p in range(3)]
    assert link.committed(group, places) == {}
    link.commit(group, {places[0]: 5, places[1]: 7}, "note")
    link.commit(group, {places[0]: 6})
    assert link.committed(group, places) == {places[0]: (6, ""), places[1]: (7, "note")}
    assert ask_admin(penstock.bootstrap, lambda admin: admin.committed(group))[places[1]].offset == 7


def test_a_group_with_members_is_not_committed_for(
    link: Link, penstock: Broker, topic: MakeTopic, fresh_name: Name
) -> None:
    name, group = topic(), fresh_name()
    consumer = Consumer({"bootstrap.servers": penstock.bootstrap, "group.id": group})
    consumer.subscribe([name])
    while not consumer.assignment():
        consumer.poll(0.1)
    with pytest.raises(Refused, match="choose a group that no consumer uses"):
        link.commit(group, {TopicPartition(name, 0): 1})
    consumer.close()


def test_what_kept_a_commit_from_being_taken_is_said(link_to: LinkTo, penstock: Broker, topic: MakeTopic) -> None:
    name = topic()
    delete_topic(penstock.bootstrap, name)
    with pytest.raises(Unavailable, match=f'after 5000 ms; group "lag", {name}-0: UNKNOWN_TOPIC_OR_PARTITION'):
        link_to(penstock.bootstrap, give_up_ms=5_000).commit("lag", {TopicPartition(name, 0): 1})


def test_a_connection_has_one_link_in_a_process(penstock: Broker) -> None:
    connection = ConnectionOptions(penstock.bootstrap, client_id="one-link")
    link = Link.to(connection)
    assert Link.to(ConnectionOptions(penstock.bootstrap, client_id="one-link")) is link
    assert Link.to(ConnectionOptions(penstock.bootstrap, client_id="another")) is not link
    link.close()
    link.close()
    fresh = Link.to(connection)
    assert fresh is not link
    assert fresh.topics([]) == {}
    fresh.close()
    Link.to(ConnectionOptions(penstock.bootstrap, client_id="another")).close()


def test_a_forked_child_has_a_link_of_its_own_and_the_parents_goes_on(
    link: Link, penstock: Broker, topic: MakeTopic
) -> None:
    name = topic()
    assert name in link.topics([name])
    child = os.fork()
    if child == 0:
        code = 1
        try:
            own = Link.to(link.connection)
            code = 0 if own is not link and name in own.topics([name]) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for _ in range(3):
        assert name in link.topics([name])


def test_work_of_other_rooms_runs_with_the_cluster_client(link: Link) -> None:
    async def work(cluster: ClusterConnections) -> MetadataCache:
        return await cluster.all_metadata()

    assert len(link.run(work).brokers) == 1


def test_brokers_that_cannot_be_reached_are_given_up_with_their_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        bootstrap = f"127.0.0.1:{unused.getsockname()[1]}"
        link = Link.to(ConnectionOptions(bootstrap, give_up_ms=2_000))
        with pytest.raises(Unavailable, match=f"{bootstrap}.* after 2000 ms.*refused"):
            link.topics(None)
        link.close()


def test_a_certificate_file_that_is_not_there_is_named() -> None:
    link = Link.to(ConnectionOptions("127.0.0.1:1", tls=Tls(ca_file="/nowhere.pem")))
    with pytest.raises(Refused, match=r'"/nowhere\.pem" cannot be read'):
        link.topics(None)
    link.close()


def test_a_listener_without_sasl_is_not_asked_twice(penstock: Broker) -> None:
    link = Link.to(ConnectionOptions(penstock.bootstrap, sasl=Sasl("PLAIN", "alice", "geheim"), give_up_ms=60_000))
    with pytest.raises(Refused, match="this listener does not use SASL") as caught:
        link.topics(None)
    assert "geheim" not in str(caught.value)
    link.close()


def test_a_topic_that_one_broker_has_not_heard_of_yet_is_asked_for_at_all(penstock: Broker, topic: MakeTopic) -> None:
    class BehindTheTimes(ClusterConnections):
        """All queries go to a broker that has just restarted."""

        async def call_any(self, request: Any, response: Any) -> Any:
            answer = await super().call_any(request, response)
            for topic in answer.topics:
                topic.error_code, topic.partitions = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []
            return answer

    async def ask(*names: str) -> list[str]:
        cluster = BehindTheTimes(penstock.bootstrap)
        await cluster.start()
        try:
            return list(await queries.list_topics(cluster, names))
        finally:
            await cluster.close()

    name = topic()
    assert asyncio.run(ask(name, "there-is-none")) == [name]


def test_topics_made_by_others_meanwhile_are_found(link: Link, penstock: Broker, fresh_name: Name) -> None:
    name = fresh_name()
    assert link.topics([name]) == {}
    make_topic(penstock.bootstrap, name, 2)
    assert link.topics([name])[name].partitions == 2
