"""Keys and records: round trips, and hostile content."""

from __future__ import annotations

import re
from uuid import UUID

import msgspec
import pytest

from penstock.state import keys
from penstock.state.records import (
    BadRecord,
    BrokerConfigRecord,
    BrokerRecord,
    ClusterRecord,
    ControllerRecord,
    EndpointRecord,
    GroupRecord,
    MemberRecord,
    OffsetRecord,
    PartitionRecord,
    ProducerIdsRecord,
    StoredRecord,
    TopicNameRecord,
    TopicRecord,
    TransactionRecord,
    decode,
    encode,
)

ID = UUID("6ba7b810-9dad-41d1-80b4-00c04fd430c8")
RECORDS: list[StoredRecord] = [
    ClusterRecord(cluster_id="abc"),
    ControllerRecord(broker_id=3, epoch=4),
    BrokerRecord(
        broker_id=1,
        incarnation=ID,
        endpoints=[EndpointRecord(listener="A", host="h", port=65535)],
        rack="r",
        failure_domain="zone/node",
        draining=True,
        registered_ms=5,
    ),
    BrokerConfigRecord(settings={"a": "b"}),
    TopicRecord(name="t", topic_id=ID, partition_count=3, overrides={"retention.ms": "1"}, created_ms=9, deleting=True),
    TopicNameRecord(topic_id=ID),
    PartitionRecord(replicas=[1, 2, 3], leader=-1, leader_epoch=7, isr=[2], adding=[3], removing=[1]),
    ProducerIdsRecord(next_id=(1 << 63) - 1),
    GroupRecord(
        protocol_type="consumer",
        generation=4,
        protocol="range",
        leader="m",
        members=[MemberRecord(member_id="m", instance_id="i", subscription=b"\x00\xff", assignment=b"\x80")],
        state_ms=8,
    ),
    OffsetRecord(offset=5, leader_epoch=2, metadata="m ü", commit_ms=3, expire_ms=4),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_a_record_comes_back_as_it_was(record: StoredRecord) -> None:
    assert decode(type(record), "/k", encode(record)) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_what_a_newer_version_added_is_ignored(record: StoredRecord) -> None:
    assert decode(type(record), "/k", encode(record)[:-1] + b',"added":[{"x":1}]}') == record


HOSTILE = [b"", b"{", b"null", b"[]", b'"x"', b"\xff\xfe", b"[" * 10_000, b"{}" * 2]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("value", HOSTILE, ids=lambda v: repr(v[:20]))
def test_what_is_no_record_is_refused_by_its_key(record: StoredRecord, value: bytes) -> None:
    with pytest.raises(BadRecord, match="/the/key"):
        decode(type(record), "/the/key", value)


@pytest.mark.parametrize(
    ("cls", "value"),
    [
        (TopicRecord, b'{"name":"t","topic_id":"6ba7b810-9dad-41d1-80b4-00c04fd430c8","partition_count":0}'),
        (TopicRecord, b'{"name":"t","topic_id":"6ba7b810-9dad-41d1-80b4-00c04fd430c8","partition_count":2000000000}'),
        (TopicRecord, b'{"name":"t","topic_id":"no id","partition_count":1}'),
        (PartitionRecord, b'{"replicas":[],"leader":0,"isr":[0]}'),
        (PartitionRecord, b'{"replicas":[0],"leader":0,"isr":[]}'),
        (PartitionRecord, b'{"replicas":[-1],"leader":0,"isr":[0]}'),
        (PartitionRecord, b'{"replicas":[0],"leader":-2,"isr":[0]}'),
        (PartitionRecord, b'{"replicas":[0],"leader":0,"isr":[0],"leader_epoch":-1}'),
        (OffsetRecord, b'{"offset":1e400}'),
        (OffsetRecord, b'{"offset":9223372036854775808}'),
        (ProducerIdsRecord, b'{"next_id":-1}'),
        (ProducerIdsRecord, b'{"next_id":9223372036854775808}'),
        (EndpointRecord, b'{"listener":"A","host":"h","port":70000}'),
    ],
)
def test_numbers_out_of_bounds_are_refused(cls: type[StoredRecord], value: bytes) -> None:
    with pytest.raises(BadRecord):
        decode(cls, "/k", value)


@pytest.mark.parametrize("group", ["g", "", "a/b", "../..", "%2F", "ü €", "a b", "/", "\x00", "-_.~"])
def test_a_group_id_survives_its_key_and_stays_one_part_of_it(group: str) -> None:
    key = keys.offset(group, ID, 12)
    assert keys.parse_offset(key) == (group, ID, 12)
    assert key.startswith(keys.group_offsets(group))
    assert keys.group_of(keys.group(group)) == group
    assert key.count("/") == keys.offset("plain", ID, 12).count("/")


def test_offsets_of_one_group_are_not_among_anothers() -> None:
    assert not keys.offset("ab", ID, 1).startswith(keys.group_offsets("a"))


@pytest.mark.parametrize("key", ["/penstock/v1/offsets/g", "/penstock/v1/offsets/9/g/x/1", "/other", keys.GROUPS + "g"])
def test_a_key_of_something_else_is_no_offset(key: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        keys.parse_offset(key)


def test_what_changes_with_traffic_is_outside_of_what_all_brokers_follow() -> None:
    for key in (keys.PRODUCER_IDS, keys.GROUPS, keys.OFFSETS):
        assert not key.startswith(keys.METADATA)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"replicas": [1, 2, 1]}, "replicas [1, 2, 1] have duplicates"),
        ({"isr": [1, 4]}, "isr [1, 4] is not a subset of replicas [1, 2, 3]"),
        ({"adding": [5]}, "adding [5] is not a subset"),
        ({"removing": [5]}, "removing [5] is not a subset"),
        ({"eligible": [5]}, "eligible [5] is not a subset"),
        ({"last_isr": [5]}, "last_isr [5] is not a subset"),
        ({"leader": 3}, "leader 3 is not in isr [1, 2]"),
        ({"isr_epochs": [7]}, "isr_epochs [7] do not match isr [1, 2]"),
        ({"isr": [1, 1]}, "isr [1, 1] have duplicates"),
        ({"eligible": [3, 3]}, "eligible [3, 3] have duplicates"),
        ({"eligible": [2]}, "eligible [2] overlaps isr [1, 2]"),
        ({"adding": [3], "removing": [3]}, "adding [3] overlaps removing [3]"),
        ({"adding": [3, 1, 2]}, "all replicas [1, 2, 3] are being added or removed"),
        ({"removing": [3, 1, 2]}, "all replicas [1, 2, 3] are being added or removed"),
    ],
)
def test_a_partition_whose_fields_contradict_each_other_is_rejected(changes: dict[str, object], reason: str) -> None:
    record = PartitionRecord(replicas=[1, 2, 3], leader=1, isr=[1, 2], isr_epochs=[7, 8])
    assert decode(PartitionRecord, "key", encode(record)) == record
    with pytest.raises(BadRecord, match=re.escape(f'the value of "key" is inconsistent: {reason}')):
        decode(PartitionRecord, "key", msgspec.json.encode(msgspec.structs.replace(record, **changes)))


MEMBERS = [MemberRecord(member_id="m", instance_id="i"), MemberRecord(member_id="n", instance_id="j")]
GROUP = GroupRecord(generation=1, protocol="range", leader="n", members=MEMBERS)
BROKER = BrokerRecord(broker_id=1, incarnation=ID, endpoints=[EndpointRecord(listener="A", host="h", port=1)])
TXN = TransactionRecord(producer_id=1, epoch=0, state="Ongoing", timeout_ms=1, partitions={ID: [0]}, groups=["g"])


@pytest.mark.parametrize(
    ("record", "changes", "reason"),
    [
        (GROUP, {"members": [*MEMBERS, MEMBERS[0]]}, "two members have the same id"),
        (GROUP, {"members": [*MEMBERS, MemberRecord(member_id="o", instance_id="i")]}, "the same instance id"),
        (GROUP, {"protocol": None}, "2 members in generation 1 with protocol None"),
        (GROUP, {"generation": 0}, "2 members in generation 0 with protocol 'range'"),
        (GROUP, {"generation": -1, "members": []}, "generation -1 is negative"),
        (GROUP, {"leader": "o"}, "leader 'o' is not a member"),
        (GROUP, {"leader": None}, "leader None is not a member"),
        (BROKER, {"endpoints": BROKER.endpoints * 2}, "listeners ['A', 'A'] have duplicates"),
        (TopicRecord(name="t", topic_id=ID, partition_count=1), {"deleted_ms": 5}, "deleted_ms is 5 without deleting"),
        (TXN, {"state": "Begun"}, "unknown state 'Begun'"),
        (TXN, {"state": "CompleteAbort", "groups": []}, "state CompleteAbort has partitions or groups"),
        (TXN, {"state": "Empty", "partitions": {}}, "state Empty has partitions or groups"),
        (TXN, {"last_producer_id": 3}, "last_producer_id is 3 without last_epoch"),
    ],
)
def test_a_record_whose_fields_contradict_each_other_is_rejected(
    record: StoredRecord, changes: dict[str, object], reason: str
) -> None:
    assert decode(type(record), "key", encode(record)) == record
    contradictory = msgspec.structs.replace(record, **changes)
    with pytest.raises(AssertionError, match=re.escape(reason)):
        encode(contradictory)
    with pytest.raises(BadRecord, match=re.escape(reason)):
        decode(type(record), "key", msgspec.json.encode(contradictory))


def test_a_group_that_is_too_large_for_its_record_has_a_leader_without_members() -> None:
    record = msgspec.structs.replace(GROUP, members=[])
    assert decode(GroupRecord, "key", encode(record)) == record
