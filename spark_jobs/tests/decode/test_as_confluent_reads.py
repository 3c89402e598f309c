"""Decoded records of another client equal those that another client reads."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.raw import Row, confluent_rows, fetch_all, rows_of
from penstock_spark_kit.topics import DEADLINE_S, MakeTopic, Rec, make_topic, produce

from penstock_spark.decode.decoder import RangeDecoder
from penstock_spark.model.ranges import READ_COMMITTED, READ_UNCOMMITTED, Fetched, OffsetRange

pytestmark = pytest.mark.integration

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def some_records(seed: int, count: int) -> list[Rec]:
    rng = random.Random(seed)
    records = []
    for number in range(count):
        key = rng.choice([None, b"", b"key-%d" % (number % 7)])
        value = rng.choice([None, b"", rng.randbytes(rng.randint(1, 300)), b"text " * rng.randint(1, 90)])
        pairs = [("trace", b"%d" % number), ("empty", b""), ("null", None)][: rng.choice([0, 0, 0, 1, 3])]
        records.append(Rec(value, key, 0, 1_700_000_000_000 + rng.randint(-10_000, 90_000), pairs))
    return records


def decoded(topic: str, answers: list[Fetched], isolation: int) -> list[Row]:
    decoder = RangeDecoder(OffsetRange(topic, 0, 0, 1 << 40), isolation, True)
    return [row for fetched in answers for row in rows_of(decoder.feed(fetched))]


def same_as_confluent(broker: Broker, topic: str) -> list[Row]:
    """Check that both isolation levels return the other client's rows; return the rows of read_committed."""
    for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
        answers = fetch_all(broker.bootstrap, topic, isolation, partition_bytes=40_000)
        rows = decoded(topic, answers, isolation)
        assert rows == confluent_rows(broker.bootstrap, topic, committed=isolation == READ_COMMITTED)
    return rows


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("a_batch", [7, 10_000])
def test_records_of_every_codec(penstock: Broker, topic: MakeTopic, codec: str, a_batch: int) -> None:
    name = topic()
    records = some_records(a_batch, 700)
    produce(penstock.bootstrap, name, records, compression=codec, config={"batch.num.messages": a_batch})
    rows = same_as_confluent(penstock, name)
    assert [(row.key, row.value, row.timestamp_ms, row.headers) for row in rows] == [
        (record.key, record.value, record.timestamp_ms, tuple(record.headers) or None) for record in records
    ]


def test_many_records_of_which_the_beginnings_are_found_in_step(penstock: Broker, topic: MakeTopic) -> None:
    name = topic()
    produce(penstock.bootstrap, name, [Rec(b"value %d" % n * 3, b"k", 0, 1_700_000_000_000 + n) for n in range(30_000)])
    rows = decoded(name, fetch_all(penstock.bootstrap, name, READ_COMMITTED, partition_bytes=4 << 20), READ_COMMITTED)
    assert [row.value for row in rows] == [b"value %d" % n * 3 for n in range(30_000)]


def test_transactions_committed_and_aborted_between_plain_records(penstock: Broker, topic: MakeTopic) -> None:
    name = topic()
    rng = random.Random(3)
    kept: list[bytes | None] = []
    for number in range(14):
        records = some_records(100 + number, rng.randint(1, 60))
        commit = rng.random() < 0.5
        transaction = rng.choice([None, f"{name}-a", f"{name}-b"])
        produce(
            penstock.bootstrap, name, records, compression=rng.choice(CODECS), transactional_id=transaction,
            commit=commit, config={"batch.num.messages": 9},
        )  # fmt: skip
        if transaction is None or commit:
            kept += [record.value for record in records]
    assert [row.value for row in same_as_confluent(penstock, name)] == kept


def test_a_topic_with_the_time_of_appending(penstock: Broker, topic: MakeTopic) -> None:
    name = topic(config={"message.timestamp.type": "LogAppendTime"})
    produce(penstock.bootstrap, name, some_records(1, 50), compression="zstd", config={"batch.num.messages": 9})
    rows = same_as_confluent(penstock, name)
    assert {row.timestamp_type for row in rows} == {1}


def test_a_compacted_topic_with_tombstones(tmp_path: Path) -> None:
    broker = Broker(tmp_path, ["log.retention.check.interval.ms=200"])
    broker.start()
    try:
        config = {
            "cleanup.policy": "compact", "segment.bytes": "16384", "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "86400000",
        }  # fmt: skip
        make_topic(broker.bootstrap, "compacted", 1, config)
        rng = random.Random(5)
        records = [
            Rec(rng.choice([None, b"text " * rng.randint(1, 50)]), b"key-%d" % rng.randrange(40), 0)
            for number in range(3_000)
        ]
        produce(broker.bootstrap, "compacted", records, compression="lz4", config={"batch.num.messages": 50})
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            rows = confluent_rows(broker.bootstrap, "compacted")
            if len(rows) < 1_500:
                break
            assert time.monotonic() < deadline_s, "the topic is not compacted"
            time.sleep(0.2)
        answers = fetch_all(broker.bootstrap, "compacted", READ_COMMITTED)
        found = decoded("compacted", answers, READ_COMMITTED)
        latest = {row.key: row for row in found}
        assert latest == {row.key: row for row in confluent_rows(broker.bootstrap, "compacted")}
        assert {key: row.value for key, row in latest.items()} == {record.key: record.value for record in records}
        assert len(found) < 3_000
    finally:
        broker.stop()
