"""A broker accepts encoded batches unchanged, and another client reads the rows."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.raw import Row, confluent_rows, produce_raw
from penstock_spark_kit.topics import MakeTopic

from penstock_spark.encode.batches import encode
from penstock_spark.encode.ports import EncodableRows, ProducerId
from penstock_spark.model.columns import HEADER

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("with_headers", [False, True])
def test_the_rows_are_read(penstock: Broker, topic: MakeTopic, codec: int, with_headers: bool) -> None:
    name = topic()
    rng = random.Random(codec)
    count = 400
    keys = [rng.choice([None, b"", b"key-%d" % n]) for n in range(count)]
    values = [rng.choice([None, b"", rng.randbytes(rng.randint(1, 200)), b"text " * 30]) for _ in range(count)]
    lists = [rng.choice([None, [], [("h", b"%d" % n), ("null", None), ("ü", b"")]]) for n in range(count)]
    times = [1_700_000_000_000 + rng.randint(-10_000, 90_000) for _ in range(count)]
    pairs = [None if each is None else [{"key": k, "value": v} for k, v in each] for each in lists]
    headers = pa.array(pairs, pa.list_(HEADER)) if with_headers else None
    rows = EncodableRows(pa.array(keys, pa.binary()), pa.array(values, pa.binary()), headers, np.array(times))
    batches = encode(rows, codec, 5_000, ProducerId(-1, -1, False), -1)
    assert len(batches) > 1
    produce_raw(penstock.bootstrap, name, [batch.data for batch in batches])
    assert confluent_rows(penstock.bootstrap, name) == [
        Row(n, times[n], 0, keys[n], values[n], tuple(lists[n] or ()) or None if with_headers else None)
        for n in range(count)
    ]
