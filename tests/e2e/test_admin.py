"""Administration, with each client that supports it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from penstock_e2e.drivers import clients
from penstock_e2e.drivers.confluent import ConfluentAdmin
from penstock_e2e.member import StartMember
from penstock_e2e.model import (
    Admin,
    ErrorCode,
    LibraryDriver,
    MakeTopic,
    Partition,
    ProducerSpec,
    Record,
    Refused,
    eventually,
)


@clients("admin")
def test_a_topic_is_created_described_and_deleted(
    library_client: LibraryDriver, admin: Admin, fresh_name: Callable[[], str]
) -> None:
    name = fresh_name()
    admin.create_topic(name, 3, {"retention.ms": "3600000"})
    eventually("the topic to be described", lambda: admin.partition_count(name) == 3)
    assert admin.topic_config(name)["retention.ms"] == "3600000"
    admin.delete_topic(name)
    eventually("the topic to be gone", lambda: admin.partition_count(name) is None)


@clients("admin")
def test_a_topic_that_is_created_again_is_empty(
    library_client: LibraryDriver, admin: Admin, fresh_name: Callable[[], str]
) -> None:
    name = fresh_name()
    for attempt in range(3):
        admin.create_topic(name)
        eventually("the topic to be described", lambda: admin.partition_count(name) == 1)
        record = Record(f"incarnation {attempt}".encode(), partition=0)
        library_client.produce(name, [record])
        (message,) = library_client.read(Partition(name, 0), "beginning", 1)
        assert (message.offset, message.value) == (0, record.value)
        admin.delete_topic(name)
        eventually("the topic to be gone", lambda: admin.partition_count(name) is None)


@clients("admin")
def test_what_is_wrong_with_a_topic_is_said_by_its_own_error(
    library_client: LibraryDriver, admin: Admin, topic: str, fresh_name: Callable[[], str]
) -> None:
    wrong: list[tuple[ErrorCode, Callable[[], None]]] = [
        (ErrorCode.TOPIC_ALREADY_EXISTS, lambda: admin.create_topic(topic)),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, lambda: admin.create_topic("../climbs")),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, lambda: admin.create_topic("n" * 250)),
        (ErrorCode.INVALID_CONFIG, lambda: admin.create_topic(fresh_name(), 1, {"no.such.thing": "1"})),
        (ErrorCode.INVALID_CONFIG, lambda: admin.create_topic(fresh_name(), 1, {"retention.ms": "soon"})),
        (ErrorCode.INVALID_CONFIG, lambda: admin.create_topic(fresh_name(), 1, {"cleanup.policy": "burn"})),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, lambda: admin.delete_topic(fresh_name())),
        (ErrorCode.INVALID_PARTITIONS, lambda: admin.create_partitions(topic, 1)),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, lambda: admin.create_partitions(fresh_name(), 3)),
    ]
    for code, call in wrong:
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.code == code
    assert admin.partition_count(topic) == 1


@clients("admin")
def test_the_settings_of_a_topic_are_described_and_altered(
    library_client: LibraryDriver, admin: Admin, make_topic: MakeTopic
) -> None:
    topic = make_topic(config={"max.message.bytes": "500000"})
    described = admin.topic_config(topic)
    assert described["max.message.bytes"] == "500000"
    assert described["cleanup.policy"] == "delete"
    assert described["compression.type"] == "producer"
    # AlterConfigs, which one of the clients still uses, resets all settings that the request omits.
    changes = {"max.message.bytes": "600000", "retention.bytes": "123456789"}
    admin.alter_topic_config(topic, changes)
    eventually("the change", lambda: admin.topic_config(topic).items() >= changes.items())
    for name, value in (("retention.bytes", "lots"), ("no.such.thing", "1")):
        with pytest.raises(Refused) as refused:
            admin.alter_topic_config(topic, {name: value})
        assert refused.value.code == ErrorCode.INVALID_CONFIG
    assert admin.topic_config(topic).items() >= changes.items()


@clients("admin")
def test_the_settings_of_compaction_are_accepted(
    library_client: LibraryDriver, admin: Admin, fresh_name: Callable[[], str]
) -> None:
    name = fresh_name()
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": "60000",
        "min.compaction.lag.ms": "1000",
        "max.compaction.lag.ms": "3600000",
        "segment.ms": "600000",
        "segment.bytes": "1048576",
    }
    admin.create_topic(name, 1, config)
    eventually("the topic to be described", lambda: admin.partition_count(name) == 1)
    assert admin.topic_config(name).items() >= config.items()
    admin.alter_topic_config(name, {"cleanup.policy": "compact,delete"})
    eventually(
        "the change",
        lambda: set((admin.topic_config(name)["cleanup.policy"] or "").split(",")) == {"compact", "delete"},
    )
    admin.delete_topic(name)


@clients("admin")
def test_partitions_are_added_while_a_producer_and_a_group_run_and_old_data_stays(
    library_client: LibraryDriver,
    admin: Admin,
    make_topic: MakeTopic,
    start_member: StartMember,
    fresh_name: Callable[[], str],
) -> None:
    topic = make_topic(2)
    member = start_member(fresh_name(), topic, metadata_max_age_ms=300)
    member.wait("an assignment", lambda m: m.assignment)
    producer = library_client.producer(ProducerSpec(metadata_max_age_ms=300, linger_ms=0))
    produced: list[bytes] = []
    stop = threading.Event()
    places: set[int] = set()

    def produce() -> None:
        """Produce keys without limit, so that the client's partitioner reaches each partition that it knows."""
        while not stop.is_set():
            for _ in range(20):
                value = f"value-{len(produced)}".encode()
                producer.send(topic, Record(value, value))
                produced.append(value)
            places.update(delivery.partition for delivery in producer.flush())
            stop.wait(0.01)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        member.wait("records from both partitions", lambda m: {r.partition for r in m.records} == {0, 1})
        admin.create_partitions(topic, 5)
        eventually("the producer to use all partitions", lambda: places == set(range(5)))
        member.wait("all partitions", lambda m: len(m.assignment or ()) == 5)
        member.wait("records from all", lambda m: {r.partition for r in m.records} == set(range(5)))
    finally:
        stop.set()
        thread.join()
        producer.close()
    member.wait("all that was produced", lambda m: set(m.values) == set(produced))
    messages = []
    for index in range(5):
        low, high = library_client.watermarks(Partition(topic, index))
        assert low == 0
        messages += library_client.read(Partition(topic, index), "beginning", high)
    assert sorted(m.value or b"" for m in messages) == sorted(produced)


@clients("admin")
def test_deleting_records_moves_the_begin_offset(library_client: LibraryDriver, admin: Admin, topic: str) -> None:
    partition = Partition(topic, 0)
    library_client.produce(topic, [Record(f"{i}".encode(), partition=0) for i in range(20)])
    assert admin.delete_records({partition: 7}) == {partition: 7}
    assert library_client.watermarks(partition) == (7, 20)
    assert [m.offset for m in library_client.read(partition, "beginning", 13)] == list(range(7, 20))
    with pytest.raises(Refused) as refused:
        admin.delete_records({partition: 21})
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert admin.delete_records({partition: -1}) == {partition: 20}
    assert library_client.watermarks(partition) == (20, 20)


@clients("admin")
def test_a_group_is_listed_and_described_with_its_members(
    library_client: LibraryDriver,
    admin: Admin,
    make_topic: MakeTopic,
    start_member: StartMember,
    fresh_name: Callable[[], str],
) -> None:
    topic, group = make_topic(4), fresh_name()
    members = [start_member(group, topic, client_id=f"member-{index}") for index in range(2)]
    members[0].wait("two each", lambda _: all(len(m.assignment or ()) == 2 for m in members))
    assert group in admin.groups()

    def stable() -> bool:
        return admin.describe_group(group).state == "Stable"

    eventually("the group to be stable", stable)
    described = {m.client_id: m.assignment for m in admin.describe_group(group).members}
    assert described == {f"member-{index}": members[index].assignment for index in range(2)}
    for member in members:
        member.leave()
    eventually("the group to be empty", lambda: admin.describe_group(group).state in ("Empty", "Dead"))
    assert admin.describe_group(group).members == ()


@clients("admin")
def test_committed_offsets_of_a_group_are_listed(
    library_client: LibraryDriver,
    admin: Admin,
    make_topic: MakeTopic,
    start_member: StartMember,
    fresh_name: Callable[[], str],
) -> None:
    topic, group = make_topic(2), fresh_name()
    library_client.produce(topic, [Record(f"{i}".encode(), partition=0) for i in range(5)])
    member = start_member(group, topic, commit="after")
    member.wait("the records", lambda m: len(m.records) == 5)
    # Some clients also commit the start of an empty partition.
    eventually("the commit", lambda: admin.group_offsets(group, topic, 2).get(Partition(topic, 0)) == 5)
    assert admin.group_offsets(group, topic, 2).get(Partition(topic, 1), 0) == 0


@clients("admin", "delete-groups")
def test_a_group_is_deleted_only_when_it_is_empty(
    library_client: LibraryDriver,
    admin: Admin,
    topic: str,
    start_member: StartMember,
    fresh_name: Callable[[], str],
) -> None:
    group = fresh_name()
    library_client.produce(topic, [Record(b"record", partition=0)])
    member = start_member(group, topic)
    member.wait("the record", lambda m: m.records)
    with pytest.raises(Refused) as refused:
        admin.delete_group(group)
    assert refused.value.code == ErrorCode.NON_EMPTY_GROUP
    member.leave()
    admin.delete_group(group)
    assert group not in admin.groups()
    assert admin.group_offsets(group, topic, 1) == {}
    with pytest.raises(Refused) as refused:
        admin.delete_group(group)
    assert refused.value.code == ErrorCode.GROUP_ID_NOT_FOUND


@clients("admin", "alter-group-offsets")
def test_the_offsets_of_an_empty_group_are_altered_and_its_next_member_starts_there(
    library_client: LibraryDriver,
    admin: Admin,
    topic: str,
    start_member: StartMember,
    fresh_name: Callable[[], str],
) -> None:
    group, partition = fresh_name(), Partition(topic, 0)
    library_client.produce(topic, [Record(f"{i}".encode(), partition=0) for i in range(20)])
    admin.alter_group_offsets(group, {partition: 15})
    assert admin.group_offsets(group, topic, 1) == {partition: 15}
    member = start_member(group, topic)
    member.wait("the rest", lambda m: len(m.records) == 5)
    assert [m.offset for m in member.records] == list(range(15, 20))
    with pytest.raises(Refused):
        admin.alter_group_offsets(group, {partition: 0})
    member.leave()
    assert admin.group_offsets(group, topic, 1) == {partition: 20}


@clients("admin")
def test_a_topic_nobody_created_comes_into_being_when_it_is_produced_to(
    library_client: LibraryDriver, admin: Admin, setup_admin: ConfluentAdmin, fresh_name: Callable[[], str]
) -> None:
    name = fresh_name()
    library_client.produce(name, [Record(b"first", b"key", 0)])
    (message,) = library_client.read(Partition(name, 0), "beginning", 1)
    assert message.value == b"first"
    assert setup_admin.partition_count(name) == 4
    admin.delete_topic(name)
