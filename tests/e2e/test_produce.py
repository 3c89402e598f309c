"""Producing and reading back, with each client, codec and acks setting."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
from penstock_e2e.drivers import DRIVERS, clients, names
from penstock_e2e.model import (
    ACKS,
    CODECS,
    Acks,
    Codec,
    Driver,
    ErrorCode,
    MakeTopic,
    Partition,
    ProducerSpec,
    Record,
    Refused,
)

LARGEST_BATCH_BYTES = 1_048_588
"""Kafka's default for max.message.bytes."""


def _records(count: int, prefix: str = "value") -> list[Record]:
    return [Record(f"{prefix}-{index}-{'x' * 50}".encode(), partition=0) for index in range(count)]


@clients()
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("acks", ACKS)
def test_every_record_is_read_back_in_order_with_each_codec_and_acks(
    client: Driver, topic: str, codec: Codec, acks: Acks
) -> None:
    records = _records(200)
    client.produce(topic, records, ProducerSpec(acks, codec, linger_ms=20))
    messages = client.read(Partition(topic, 0), "beginning", len(records))
    assert [m.value for m in messages] == [r.value for r in records]
    assert [m.offset for m in messages] == list(range(len(records)))


@clients()
@pytest.mark.parametrize("codec", CODECS)
def test_what_one_client_compressed_every_other_client_reads(
    client: Driver, bootstrap: str, topic: str, codec: Codec
) -> None:
    records = _records(50)
    client.produce(topic, records, ProducerSpec(codec=codec, linger_ms=20))
    for name in names():
        messages = DRIVERS[name](bootstrap).read(Partition(topic, 0), "beginning", len(records))
        assert [m.value for m in messages] == [r.value for r in records], f"read by {name}"


@clients()
def test_an_idempotent_producer_writes_each_record_once_and_in_order(client: Driver, topic: str) -> None:
    records = _records(500)
    client.produce(topic, records, ProducerSpec(idempotent=True, batch_size_bytes=1000, linger_ms=0))
    messages = client.read(Partition(topic, 0), "beginning", len(records))
    assert [m.value for m in messages] == [r.value for r in records]
    assert client.watermarks(Partition(topic, 0)) == (0, len(records))


@clients()
def test_records_of_a_key_stay_in_order_in_one_partition(client: Driver, make_topic: MakeTopic) -> None:
    partitions, keys, rounds = 4, 8, 50
    topic = make_topic(partitions)
    records = [
        Record(f"{key}:{index}".encode(), f"key-{key}".encode())
        for index, key in itertools.product(range(rounds), range(keys))
    ]
    client.produce(topic, records, ProducerSpec(idempotent=True, batch_size_bytes=500, linger_ms=0))
    places = defaultdict(set)
    order = defaultdict(list)
    for index in range(partitions):
        partition = Partition(topic, index)
        low, high = client.watermarks(partition)
        for message in client.read(partition, "beginning", high - low) if high > low else ():
            assert message.key is not None
            assert message.value is not None
            places[message.key].add(index)
            order[message.key].append(message.value)
    assert {key: len(where) for key, where in places.items()} == {f"key-{k}".encode(): 1 for k in range(keys)}
    assert dict(order) == {
        f"key-{key}".encode(): [f"{key}:{index}".encode() for index in range(rounds)] for key in range(keys)
    }


@clients()
def test_headers_null_keys_and_tombstones_come_back_as_they_were(client: Driver, topic: str) -> None:
    records = [
        Record(b"plain", partition=0),
        Record(b"keyed", b"key", 0),
        Record(None, b"tombstone", 0),
        Record(b"with headers", b"key", 0, (("first", b"1"), ("second", b"2"))),
    ]
    client.produce(topic, records)
    messages = client.read(Partition(topic, 0), "beginning", len(records))
    assert [(m.key, m.value, m.headers) for m in messages] == [(r.key, r.value, r.headers) for r in records]


@clients("repeated-headers")
def test_headers_keep_their_order_their_repeats_and_their_bytes(client: Driver, topic: str) -> None:
    headers = (("b", b"\x00\xff"), ("a", b"2"), ("b", b""), ("ключ", "значение".encode()))
    client.produce(topic, [Record(b"\x00\xff\xfe", b"\x80", 0, headers)])
    (message,) = client.read(Partition(topic, 0), "beginning", 1)
    assert (message.key, message.value, message.headers) == (b"\x80", b"\x00\xff\xfe", headers)


@clients()
def test_a_message_just_below_the_largest_batch_goes_through(client: Driver, topic: str) -> None:
    value = b"v" * (LARGEST_BATCH_BYTES - 500)
    client.produce(topic, [Record(value, partition=0)], ProducerSpec(max_request_size_bytes=4_000_000))
    (message,) = client.read(Partition(topic, 0), "beginning", 1)
    assert message.value == value


@clients()
def test_a_message_above_the_largest_batch_is_refused_and_the_partition_goes_on(client: Driver, topic: str) -> None:
    spec = ProducerSpec(max_request_size_bytes=4_000_000)
    with pytest.raises(Refused) as refused:
        client.produce(topic, [Record(b"v" * LARGEST_BATCH_BYTES, partition=0)], spec)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    client.produce(topic, [Record(b"small", partition=0)], spec)
    (message,) = client.read(Partition(topic, 0), "beginning", 1)
    assert (message.offset, message.value) == (0, b"small")


@clients()
def test_a_topics_own_largest_batch_is_kept(client: Driver, make_topic: MakeTopic) -> None:
    topic = make_topic(config={"max.message.bytes": "2000"})
    client.produce(topic, [Record(b"v" * 1800, partition=0)])
    with pytest.raises(Refused) as refused:
        client.produce(topic, [Record(b"v" * 2000, partition=0)])
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert client.watermarks(Partition(topic, 0)) == (0, 1)


@clients("error-names")
def test_a_compacted_topic_refuses_a_record_without_a_key(client: Driver, make_topic: MakeTopic) -> None:
    topic = make_topic(config={"cleanup.policy": "compact"})
    with pytest.raises(Refused) as refused:
        client.produce(topic, [Record(b"no key", partition=0)])
    assert refused.value.code == ErrorCode.INVALID_RECORD
    client.produce(topic, [Record(b"keyed", b"key", 0)])
    (message,) = client.read(Partition(topic, 0), "beginning", 1)
    assert message.value == b"keyed"


@clients("timestamps")
def test_create_time_is_the_producers(client: Driver, topic: str) -> None:
    client.produce(topic, [Record(b"old", partition=0, timestamp_ms=1_000_000)])
    (message,) = client.read(Partition(topic, 0), "beginning", 1)
    assert (message.timestamp_ms, message.timestamp_type) == (1_000_000, "create")


@clients("timestamps")
def test_log_append_time_is_the_brokers(client: Driver, make_topic: MakeTopic) -> None:
    topic = make_topic(config={"message.timestamp.type": "LogAppendTime"})
    records = [Record(b"record", partition=0, timestamp_ms=1_000_000 + index) for index in range(3)]
    client.produce(topic, records, ProducerSpec(linger_ms=50))
    messages = client.read(Partition(topic, 0), "beginning", len(records))
    assert {m.timestamp_type for m in messages} == {"append"}
    assert min(m.timestamp_ms for m in messages) > 1_600_000_000_000, "not a time of this century's clocks"
