"""The admin client: topics, partitions, replicas, configuration, groups, offsets, log directories, ACLs, SCRAM users.

Public API; also used by the command line, the operator and the Spark package.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType

from penstock.client.admin.partitions import PartitionAdminClient
from penstock.client.admin.quotas import QuotaAdminClient
from penstock.client.admin.security import SecurityAdminClient
from penstock.client.admin.shrinks import ShrinkAdminClient
from penstock.client.admin.types import LogDir
from penstock.client.cluster import ClusterConnections
from penstock.client.errors import check, error_code
from penstock.client.group_protocol import by_topic
from penstock.client.offsets import EARLIEST, LATEST, group_by_leader, list_offsets, list_undelivered
from penstock.client.security import Security
from penstock.client.types import OffsetAndTimestamp, TopicPartition, UndeliveredRecords
from penstock.wire.messages import (
    delete_records,
    describe_log_dirs,
)


class Admin(ShrinkAdminClient, PartitionAdminClient, QuotaAdminClient, SecurityAdminClient):
    """Manages a cluster.

    ```python
    async with Admin("127.0.0.1:9092") as admin:
        await admin.create_topics([NewTopic("flights", partitions=3)])
    ```

    Calls for several items try each of them, then raise the first error (a `BrokerError` whose `about` names the item).
    Retriable errors are retried for `request_timeout_ms`. Calls for many items (`..._many`, and others where stated)
    split them into bounded requests and return a result for each: a value, or a `ClientError`. `security` is TLS and
    SASL; by default connections are plain text.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str] = "127.0.0.1:9092",
        *,
        client_id: str = "penstock-admin",
        request_timeout_ms: float = 30_000,
        connect_timeout_ms: float = 10_000,
        security: Security | None = None,
    ) -> None:
        cluster = ClusterConnections(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            security=security,
        )
        super().__init__(cluster)

    async def __aenter__(self) -> Admin:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to the cluster. Raises `NoBrokerAvailable`."""
        try:
            await self._cluster.start()
        except BaseException:
            await self._cluster.close()
            raise

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await self._cluster.close()

    async def log_dirs(
        self, partitions: Iterable[TopicPartition] | None = None, *, brokers: Iterable[int] | None = None
    ) -> list[LogDir]:
        """Return all brokers' log directories with partition sizes; failed directories have an `error`.

        `partitions` limits the listed partitions, `brokers` the queried brokers (None: all).
        """
        topics = None
        if partitions is not None:
            topics = [
                describe_log_dirs.DescribableLogDirTopic(topic=topic, partitions=indexes)
                for topic, indexes in by_topic(partitions).items()
            ]
        if brokers is None:
            return await self._of_each_broker(lambda node_id: self._log_dirs_of(node_id, topics))
        answers = await asyncio.gather(*(self._log_dirs_of(node_id, topics) for node_id in brokers))
        return [found for answer in answers for found in answer]

    async def _log_dirs_of(
        self, node_id: int, topics: list[describe_log_dirs.DescribableLogDirTopic] | None
    ) -> list[LogDir]:
        request = describe_log_dirs.DescribeLogDirsRequest(topics=topics)
        answer = await self._cluster.call(node_id, request, describe_log_dirs.DescribeLogDirsResponse)
        check(answer.error_code, f"log directories of broker {node_id}")
        found = []
        for result in answer.results:
            sizes = {
                TopicPartition(topic.name, p.partition_index): p.partition_size
                for topic in result.topics
                for p in topic.partitions
            }
            error = error_code(result.error_code)
            found.append(LogDir(node_id, result.log_dir, result.total_bytes, result.usable_bytes, sizes, error))
        return found

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete records before an offset, by partition (-1: all). Returns the new log start offsets."""
        if not before:
            return {}
        await self._cluster.fetch_topics({tp.topic for tp in before})
        found: dict[TopicPartition, int] = {}

        async def attempt() -> dict[TopicPartition, int]:
            left = {tp: offset for tp, offset in before.items() if tp not in found}
            for node, part in group_by_leader(self._cluster, left).items():
                found.update(await self._delete_records_at(node, part))
            return found

        return await self._cluster.retrying(attempt)

    async def _delete_records_at(self, node_id: int, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        topics = [
            delete_records.DeleteRecordsTopic(
                name=topic,
                partitions=[
                    delete_records.DeleteRecordsPartition(partition_index=p, offset=before[TopicPartition(topic, p)])
                    for p in partitions
                ],
            )
            for topic, partitions in by_topic(before).items()
        ]
        request = delete_records.DeleteRecordsRequest(topics=topics, timeout_ms=30_000)
        answer = await self._cluster.call(node_id, request, delete_records.DeleteRecordsResponse)
        found = {}
        for topic in answer.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                check(p.error_code, str(tp))
                found[tp] = p.low_watermark
        return found

    async def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Return the first offset at or after a time (ms since the epoch), or at EARLIEST, LATEST, MAX_TIMESTAMP, by
        partition.
        """
        return await list_offsets(self._cluster, wanted)

    async def undelivered(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, UndeliveredRecords]:
        """Return the records that wait for their delivery by partition; empty if the leaders do not support it."""
        return await list_undelivered(self._cluster, partitions)

    async def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return (log start offset, end offset for consumers) by partition."""
        listed = list(partitions)
        starts = await list_offsets(self._cluster, dict.fromkeys(listed, EARLIEST))
        ends = await list_offsets(self._cluster, dict.fromkeys(listed, LATEST))
        return {tp: (starts[tp].offset, ends[tp].offset) for tp in listed}
