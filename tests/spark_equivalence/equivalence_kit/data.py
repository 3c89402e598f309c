"""The topics that both read: every codec, null keys and values, headers, transactions, a truncated log."""

from __future__ import annotations

import random

from penstock_spark_kit.topics import Rec, delete_records, make_topic, produce

MIXED, OTHER = "eq-a-mixed", "eq-b-other"
TRANSACTIONAL, APPENDED, TRIMMED = "eq-transactional", "eq-appended", "eq-trimmed"
FIRST_MS, STEP_MS = 1_700_000_000_123, 1_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SEED = 20_260_101


def fill(bootstrap: str) -> None:
    chance = random.Random(SEED)
    # The times are long ago, so retention by age must not apply to them.
    kept = {"retention.ms": "-1"}
    make_topic(bootstrap, MIXED, 3, kept)
    for number, codec in enumerate(CODECS):
        records = [record(chance, 3, number * 20 + index) for index in range(20)]
        produce(bootstrap, MIXED, records, compression=codec, config={"batch.num.messages": 7})
    make_topic(bootstrap, OTHER, 2, kept)
    produce(bootstrap, OTHER, [record(chance, 2, index) for index in range(9)])
    make_topic(bootstrap, TRANSACTIONAL, 2, kept)
    for number in range(8):
        records = [record(chance, 2, number * 10 + index) for index in range(10)]
        who = None if number % 3 == 2 else f"eq-{number % 2}"
        produce(bootstrap, TRANSACTIONAL, records, transactional_id=who, commit=number % 4 != 1)
    make_topic(bootstrap, APPENDED, 1, kept | {"message.timestamp.type": "LogAppendTime"})
    produce(bootstrap, APPENDED, [record(chance, 1, index) for index in range(10)])
    make_topic(bootstrap, TRIMMED, 1, kept)
    produce(bootstrap, TRIMMED, [record(chance, 1, index) for index in range(30)])
    delete_records(bootstrap, TRIMMED, {0: 12})


def record(chance: random.Random, partitions: int, index: int) -> Rec:
    """Return a record. The first records of each topic are for partition 0, 1, ..., so that no partition is empty."""
    headers = [
        (chance.choice(["a", "b", "größe", ""]), chance.choice([None, b"", b"x", bytes([255, 0])]))
        for _ in range(chance.choice([0, 0, 1, 3]))
    ]
    return Rec(
        value=chance.choice([None, b"", f"value {index}".encode(), bytes(chance.randrange(256) for _ in range(300))]),
        key=chance.choice([None, b"", f"key {index % 5}".encode()]),
        partition=index % partitions if index < partitions else chance.randrange(partitions),
        timestamp_ms=FIRST_MS + index * STEP_MS + chance.choice([0, 0, -1500, 700]),
        headers=headers,
    )
