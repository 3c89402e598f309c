"""A write to a missing topic creates it, if brokers and options allow that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from penstock_spark_kit.batches_written import values_of
from penstock_spark_kit.broker import SETTINGS, Broker

from penstock_spark.link.link import Link
from penstock_spark.model.errors import Refused
from penstock_spark.options.sink import SinkOptions
from penstock_spark.sink.columns import SinkColumns
from penstock_spark.sink.task import TaskIdentity, TaskWriter

pytestmark = pytest.mark.integration

FORBIDDEN = {"kafka.allow.auto.create.topics": "false"}


def write(broker: Broker, topic: str, number: int, **more: str) -> None:
    """Write rows like a task."""
    given = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, **more}
    columns = SinkColumns(key=False, headers=False, topic=False, partition=False, timestamp=False)
    with TaskWriter(SinkOptions.parse(given), columns, TaskIdentity(number, 0)) as task:
        task.write(iter([pa.record_batch({"value": pa.array([b"%d" % number], pa.binary())})]))


@pytest.fixture
def strict_broker(tmp_path: Path) -> Iterator[Broker]:
    """Run a broker that creates no topic automatically."""
    broker = Broker(tmp_path, (*SETTINGS, "auto.create.topics.enable=false"))
    try:
        yield broker.start()
    finally:
        broker.kill()


def test_a_topic_is_created_by_the_first_of_several_tasks(penstock: Broker, fresh_name: Callable[[], str]) -> None:
    name = fresh_name()
    for number in range(2):
        write(penstock, name, number)
    assert values_of(penstock.bootstrap, name) == [b"0", b"1"]


def test_no_topic_is_created_where_the_options_forbid_it(penstock: Broker, fresh_name: Callable[[], str]) -> None:
    name = fresh_name()
    with pytest.raises(Refused, match=f'topic "{name}" does not exist; create it with'):
        write(penstock, name, 0, **FORBIDDEN)
    link = Link.to(SinkOptions.parse({"kafka.bootstrap.servers": penstock.bootstrap}).connection)
    assert not link.topics([name])


def test_a_name_that_no_topic_can_have_is_refused(penstock: Broker) -> None:
    with pytest.raises(Refused, match="INVALID_TOPIC_EXCEPTION"):
        write(penstock, "no topic", 0)


def test_no_topic_is_created_where_brokers_do_not_create_any(strict_broker: Broker) -> None:
    with pytest.raises(Refused, match="is not created automatically"):
        write(strict_broker, "absent", 0)
