"""Start positions of consumers: seeking, beginning and end offsets, offsets by time, offsets inside a batch."""

from __future__ import annotations

import pytest
from penstock_e2e.drivers import DRIVERS, clients
from penstock_e2e.drivers.confluent import ConfluentAdmin
from penstock_e2e.model import (
    CODECS,
    Codec,
    Driver,
    LibraryDriver,
    MakeTopic,
    Partition,
    ProducerSpec,
    Record,
    read_until,
)

BASE_MS = 1_700_000_000_000


def _fill(driver: Driver, topic: str, count: int, codec: Codec = "none") -> None:
    """Produce records 0..count-1, one second apart, in as few batches as the client makes."""
    records = [Record(f"{i}".encode(), partition=0, timestamp_ms=BASE_MS + i * 1000) for i in range(count)]
    driver.produce(topic, records, ProducerSpec(codec=codec, linger_ms=200))


def _filled(bootstrap: str, topic: str, count: int, codec: Codec = "none") -> Partition:
    _fill(DRIVERS["confluent"](bootstrap), topic, count, codec)
    return Partition(topic, 0)


@clients()
def test_begin_and_end_offsets_follow_what_is_produced(client: Driver, bootstrap: str, topic: str) -> None:
    assert client.watermarks(Partition(topic, 0)) == (0, 0)
    partition = _filled(bootstrap, topic, 10)
    assert client.watermarks(partition) == (0, 10)


@clients()
@pytest.mark.parametrize("codec", CODECS)
def test_reading_from_an_offset_inside_a_batch_starts_at_exactly_that_record(
    client: Driver, bootstrap: str, topic: str, codec: Codec
) -> None:
    partition = _filled(bootstrap, topic, 100, codec)
    assert [m.offset for m in client.read(partition, 57, 43)] == list(range(57, 100))


@clients("library")
def test_seeking_back_and_forth_reads_from_there_each_time(
    library_client: LibraryDriver, bootstrap: str, topic: str
) -> None:
    partition = _filled(bootstrap, topic, 50)
    consumer = library_client.consumer()
    try:
        consumer.assign(partition, "beginning")
        assert [m.offset for m in read_until(consumer, 5)] == [0, 1, 2, 3, 4]
        for target in (40, 3, 49, 0, 25):
            consumer.seek(partition, target)
            (message,) = read_until(consumer, 1)
            assert (message.offset, message.value) == (target, str(target).encode())
    finally:
        consumer.close()


@clients("library")
def test_a_consumer_at_the_end_sees_only_what_comes_later(
    library_client: LibraryDriver, bootstrap: str, topic: str
) -> None:
    partition = _filled(bootstrap, topic, 10)
    consumer = library_client.consumer()
    try:
        consumer.assign(partition, 10)
        library_client.produce(topic, [Record(b"later", partition=0)])
        (message,) = read_until(consumer, 1)
        assert (message.offset, message.value) == (10, b"later")
    finally:
        consumer.close()


@clients("library")
def test_one_consumer_reads_several_partitions_to_their_ends(
    library_client: LibraryDriver, make_topic: MakeTopic
) -> None:
    topic = make_topic(3)
    records = [Record(f"{p}:{i}".encode(), partition=p) for i in range(40) for p in range(3)]
    library_client.produce(topic, records)
    consumer = library_client.consumer()
    try:
        for index in range(3):
            consumer.assign(Partition(topic, index), "beginning")
        messages = read_until(consumer, 120)
    finally:
        consumer.close()
    for index in range(3):
        values = [m.value for m in messages if m.partition == index]
        assert values == [f"{index}:{i}".encode() for i in range(40)]


@clients()
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_the_offset_for_a_time_is_the_first_record_not_older_even_inside_a_batch(
    client: Driver, bootstrap: str, topic: str, codec: Codec
) -> None:
    partition = _filled(bootstrap, topic, 20, codec)
    assert client.offset_for_time(partition, 1) == 0
    assert client.offset_for_time(partition, BASE_MS) == 0
    assert client.offset_for_time(partition, BASE_MS + 7000) == 7
    assert client.offset_for_time(partition, BASE_MS + 7001) == 8
    assert client.offset_for_time(partition, BASE_MS + 19_000) == 19


@clients()
def test_there_is_no_offset_for_a_time_after_the_last_record(client: Driver, bootstrap: str, topic: str) -> None:
    partition = _filled(bootstrap, topic, 5)
    assert client.offset_for_time(partition, BASE_MS + 100_000) in (None, 5)


@clients()
def test_reading_below_the_begin_offset_falls_back_to_the_begin_offset(
    client: Driver, bootstrap: str, setup_admin: ConfluentAdmin, topic: str
) -> None:
    partition = _filled(bootstrap, topic, 20)
    setup_admin.delete_records({partition: 12})
    assert client.watermarks(partition) == (12, 20)
    assert [m.offset for m in client.read(partition, 3, 8)] == list(range(12, 20))


@clients("library")
def test_a_fetch_smaller_than_the_batch_still_gets_it(
    library_client: LibraryDriver, bootstrap: str, topic: str
) -> None:
    value = b"v" * 900_000
    library_client.produce(
        topic,
        [Record(value, partition=0), Record(b"next", partition=0)],
        ProducerSpec(max_request_size_bytes=2_000_000),
    )
    messages = library_client.read(Partition(topic, 0), "beginning", 2)
    assert [len(m.value or b"") for m in messages] == [900_000, 4]
