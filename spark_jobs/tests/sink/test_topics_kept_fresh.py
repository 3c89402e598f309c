"""A worker that has cached a topic's metadata writes with its current metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from cluster_processes import Cluster, running
from penstock_spark_kit.batches_written import batches, read_all, schema, values_of, wanted
from penstock_spark_kit.broker import Broker
from penstock_spark_kit.topics import add_partitions, make_topic

from penstock.client.cluster import ClusterConnections as Client
from penstock.client.partitioner import murmur2
from penstock_spark.link.link import Link
from penstock_spark.options.sink import SinkOptions
from penstock_spark.sink.columns import sink_columns
from penstock_spark.sink.splitting import BadRow
from penstock_spark.sink.task import TaskIdentity, TaskWriter

pytestmark = pytest.mark.integration


def options_of(bootstrap: str, topic: str) -> SinkOptions:
    return SinkOptions.parse(
        {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.client.id": topic, "kafka.batch.size": "20000"}
    )


def write(options: SinkOptions, rows: Iterator[pa.RecordBatch]) -> None:
    with TaskWriter(
        options, sink_columns(schema("key binary, value binary"), options.topic), TaskIdentity(0, 0)
    ) as task:
        task.write(rows)


def test_keyed_rows_go_where_the_partitions_of_today_have_them(penstock: Broker, topic: Callable[..., str]) -> None:
    name = topic(2)
    options = options_of(penstock.bootstrap, name)
    link = Link.to(options.connection)
    assert link.topics([name])[name].partitions == 2
    seen = 0
    for total in (5, 7):
        add_partitions(penstock.bootstrap, name, total)
        if seen:  # the client now tracks the written topic: the next refresh updates it
            link.run(lambda cluster: cluster.refresh())
        write(options, batches(500, first=seen, keys=60))
        fresh = [m for m in read_all(penstock.bootstrap, name) if int(m.value()) >= seen]
        assert len(fresh) == 500
        assert all(m.partition() == (murmur2(m.key()) & 0x7FFFFFFF) % total for m in fresh)
        seen += 500


def test_a_row_may_name_a_partition_that_is_younger_than_what_the_worker_knows(
    penstock: Broker, topic: Callable[..., str]
) -> None:
    one, other = topic(2), topic(2)
    options = SinkOptions.parse({"kafka.bootstrap.servers": penstock.bootstrap, "kafka.client.id": one})
    columns = sink_columns(schema("topic string, value binary, partition int"), None)

    def write_to(*places: tuple[str, int | None]) -> None:
        rows = pa.record_batch(
            {
                "topic": pa.array([name for name, _ in places]),
                "value": pa.array([b"%d" % (number or 0) for _, number in places]),
                "partition": pa.array([number for _, number in places], pa.int32()),
            }
        )
        with TaskWriter(options, columns, TaskIdentity(0, 0)) as task:
            task.write(iter([rows]))

    write_to((one, 1), (other, 0))
    add_partitions(penstock.bootstrap, one, 5)
    write_to((one, 0), (other, 1), (one, 4), (other, None))
    assert sorted((m.partition(), m.value()) for m in read_all(penstock.bootstrap, one)) == [
        (0, b"0"), (1, b"1"), (4, b"4"),
    ]  # fmt: skip
    assert {m.value() for m in read_all(penstock.bootstrap, other)} == {b"0", b"1"}
    with pytest.raises(BadRow, match=f'partition 5 of topic "{one}", which has 5'):
        write_to((one, 5))
    with pytest.raises(BadRow, match=f'partition 4 of topic "{other}", which has 2'):
        write_to((one, 4), (other, 4))


@pytest.mark.timeout(180)
def test_rows_go_to_the_leader_that_took_over(tmp_path: Path) -> None:
    with running(Cluster(tmp_path)) as cluster:
        make_topic(cluster.bootstrap, "t", 1, replicas=3)
        options = options_of(cluster.bootstrap, "t")
        link = Link.to(options.connection)
        link.topics(["t"])

        async def leader(client: Client) -> int:
            return client.metadata.leader("t", 0)

        def rows() -> Iterator[pa.RecordBatch]:
            yield from batches(5000, keys=50)
            cluster.brokers[link.run(leader)].kill()
            yield from batches(5000, first=5000, keys=50)

        write(options, rows())
        assert values_of(cluster.bootstrap, "t") == wanted(10_000)
