"""Effects of `failOnDataLoss` on a task whose records disappear. On a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import pyarrow as pa
import pytest
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.topics import MakeTopic, delete_records, delete_topic, make_topic, produce

from penstock_spark.link.link import Link
from penstock_spark.model.errors import DataLoss
from penstock_spark.model.ranges import OffsetRange
from penstock_spark.options.source import SourceOptions
from penstock_spark.source.reading import read_task
from penstock_spark.source.splitting import ReadTask

pytestmark = pytest.mark.integration

Lose = Callable[[Broker, str], None]
COUNT, KEPT_FROM = 2_000, 1_500


@pytest.fixture
def filled(penstock: Broker, topic: MakeTopic) -> str:
    name = topic()
    produce(penstock.bootstrap, name, [b"%06d" % n * 20 for n in range(COUNT)], config={"batch.num.messages": 50})
    return name


def begun(broker: Broker, topic: str, fail: bool) -> Iterator[pa.RecordBatch]:
    """Start a task that has read a small part of its range."""
    options = SourceOptions.parse(
        {
            "kafka.bootstrap.servers": broker.bootstrap,
            "subscribe": topic,
            "kafka.max.partition.fetch.bytes": "8000",
            "failOnDataLoss": str(fail).lower(),
        },
        streaming=False,
    )
    id_ = Link.to(options.connection).topics([topic])[topic].topic_id
    batches = iter(read_task(options, ReadTask(OffsetRange(topic, 0, 0, COUNT), id_)))
    return chain([next(batches)], batches)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def by_retention(broker: Broker, topic: str) -> None:
    delete_records(broker.bootstrap, topic, {0: KEPT_FROM})


def by_deleting(broker: Broker, topic: str) -> None:
    delete_topic(broker.bootstrap, topic)


def by_making_anew(broker: Broker, topic: str) -> None:
    delete_topic(broker.bootstrap, topic)
    make_topic(broker.bootstrap, topic)
    produce(broker.bootstrap, topic, [b"of another topic"] * COUNT)


@pytest.mark.parametrize(
    ("lose", "left", "said"),
    [
        (by_retention, range(KEPT_FROM, COUNT), "offsets {next} to 1499 were deleted before they were read"),
        (by_deleting, range(0), "the topic was deleted; offsets {next} to 1999 were to be read"),
        (by_making_anew, range(0), "deleted and created again"),
    ],
)
def test_records_that_go_while_a_task_reads_are_a_loss_unless_that_is_allowed(
    penstock: Broker, filled: str, lose: Lose, left: range, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    allowed, failing = begun(penstock, filled, fail=False), begun(penstock, filled, fail=True)
    lose(penstock, filled)
    seen = offsets(allowed)
    read = len(seen) - len(left)
    assert 0 < read < KEPT_FROM
    assert seen == [*range(read), *left]
    assert said.format(next=read) in caplog.text
    assert "the query continues, because failOnDataLoss is false" in caplog.text
    with pytest.raises(DataLoss, match=f'topic "{filled}", partition 0: '):
        offsets(failing)
