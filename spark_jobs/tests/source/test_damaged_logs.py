"""Unreadable batches of queries: the tests change bytes of a broker's segment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.raw import reseal
from penstock_spark_kit.streams import Query
from penstock_spark_kit.topics import make_topic, produce
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock.wire.batch import LENGTH_OVERHEAD
from penstock_spark.jobs.run.failures import may_pass

pytestmark = pytest.mark.integration

Change = Callable[[bytearray], None]


def other_bytes(batch: bytearray) -> None:
    batch[-2] ^= 1


def codec_of_tomorrow(batch: bytearray) -> None:
    """Make a valid batch with a correct CRC and an unknown codec."""
    batch[22] |= 5
    reseal(batch)


def change_batch(broker: Broker, offset: int, change: Change) -> Callable[[], None]:
    """Change the batch at an offset of the broker's only partition on disk. Return a function that restores it."""
    (path,) = (broker.home / "data").glob("*-0/*.log")
    data = path.read_bytes()
    at = 0
    while int.from_bytes(data[at : at + 8], "big") != offset:
        at += LENGTH_OVERHEAD + int.from_bytes(data[at + 8 : at + 12], "big")
    before = data[at : at + LENGTH_OVERHEAD + int.from_bytes(data[at + 8 : at + 12], "big")]
    after = bytearray(before)
    change(after)

    def write(batch: bytes | bytearray) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(batch)

    write(after)
    return lambda: write(before)


@pytest.mark.parametrize(
    ("change", "said"), [(other_bytes, "its CRC is wrong"), (codec_of_tomorrow, "compression codec 5 is unknown")]
)
def test_a_batch_that_cannot_be_read_ends_the_query_at_each_start_until_it_is_whole(
    spark: SparkSession, own_broker: Broker, tmp_path: Path, change: Change, said: str
) -> None:
    make_topic(own_broker.bootstrap, "t")
    for value in (b"1", b"2", b"3"):
        produce(own_broker.bootstrap, "t", [value])
    undo = change_batch(own_broker, 1, change)
    query = Query(spark, tmp_path, own_broker, subscribe="t", maxOffsetsPerTrigger="1")
    for allowed in ("true", "false"):
        with pytest.raises(StreamingQueryException, match=f"t-0: cannot read the batch at offset 1: {said}") as e:
            query.run(failOnDataLoss=allowed)
        assert not may_pass(e.value), "a job would begin again and again"
        assert query.values() == ["1"]
    undo()
    query.run()
    assert query.values() == ["1", "2", "3"]
