"""Admin calls that measure consumer lag, in records and in time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.client.admin.groups import Committed
from penstock.client.admin.modern_groups import ModernGroupAdminClient
from penstock.client.admin.types import GroupLag, PartitionLag
from penstock.client.errors import BrokerError, ClientError
from penstock.client.group_protocol import by_topic
from penstock.client.many import all_or_raise, request_by_node, request_each
from penstock.client.offsets import EARLIEST, LATEST, ListedOffsets, list_offsets_at
from penstock.client.types import OffsetAndMetadata, TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.offset_metadata import is_position

MAX_MEASURED_PARTITIONS = 1_000
"""Partitions measured at the same time, over all leaders."""
MAX_OFFSETS_PER_REQUEST = 5_000
"""Committed offsets per request; half of a broker's limit."""
UNKNOWN_TOPIC_ERRORS = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

PartitionMeasurement = tuple[int, int, dict[int, int]]
"""(start offset, end offset, age in ms by committed offset) of a partition; unknown ages are missing."""


class LagAdminClient(ModernGroupAdminClient):
    """Lag calls; applications use `admin.Admin`."""

    async def lag(self, groups: Iterable[str]) -> dict[str, GroupLag | ClientError]:
        """Return the lag of groups in all partitions with committed offsets, with one request per leader for many
        groups.

        Committed offsets of deleted topics are omitted.
        """
        committed = {
            group: found if isinstance(found, ClientError) else positions(found)
            for group, found in (await self.committed_many(groups)).items()
        }
        offsets: dict[TopicPartition, set[int]] = {}
        for offsets_ in committed.values():
            if not isinstance(offsets_, ClientError):
                for tp, position in offsets_.items():
                    offsets.setdefault(tp, set()).add(position.offset)
        measured = await self._measure({tp: sorted(values) for tp, values in offsets.items()})
        return {
            group: found if isinstance(found, ClientError) else group_lag_from(found, measured)
            for group, found in committed.items()
        }

    async def group_lag(self, group: str, topics: Iterable[str] = ()) -> dict[TopicPartition, PartitionLag]:
        """Return a group's lag in partitions with committed offsets and in all partitions of `topics`.

        Partitions of deleted topics are omitted.
        """
        committed = positions(all_or_raise(await self.committed_many([group]))[group])
        known = (await self._cluster.all_metadata()).topics
        selected = {tp for tp in committed if tp.topic in known and tp.partition in known[tp.topic].partitions}
        selected |= {TopicPartition(t, p) for t in topics if t in known for p in known[t].partitions}
        offsets = {tp: [committed[tp].offset] if tp in committed else [] for tp in sorted(selected)}
        found: dict[TopicPartition, PartitionLag] = {}
        for tp, (start, end, ages_ms) in all_or_raise(await self._measure(offsets)).items():
            position = committed.get(tp)
            found[tp] = PartitionLag(position, start, end, None if position is None else ages_ms.get(position.offset))
        return found

    async def _measure(
        self, offsets: Mapping[TopicPartition, Sequence[int]]
    ) -> dict[TopicPartition, PartitionMeasurement | ClientError]:
        async def request_chunk(
            chunk: list[TopicPartition],
        ) -> dict[TopicPartition, PartitionMeasurement | ClientError]:
            unknown = {tp.topic for tp in chunk if tp in requested_before or leader_of(tp) < 0}
            if unknown:
                await self._cluster.update_topics(unknown)
            requested_before.update(chunk)
            results: dict[TopicPartition, PartitionMeasurement | ClientError] = {}
            nodes: dict[int, list[TopicPartition]] = {}
            for tp in chunk:
                if leader_of(tp) >= 0:
                    nodes.setdefault(leader_of(tp), []).append(tp)
                elif self._cluster.metadata.partition_count(tp.topic) > tp.partition:
                    results[tp] = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, str(tp))
                else:
                    results[tp] = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(tp))
            results |= await request_by_node(nodes, lambda node, values: self._measure_at(node, values, offsets))
            return results

        def should_retry(error: ClientError) -> bool:
            return error.retriable and not (isinstance(error, BrokerError) and error.code in UNKNOWN_TOPIC_ERRORS)

        def leader_of(tp: TopicPartition) -> int:
            return self._cluster.metadata.leader(tp.topic, tp.partition)

        requested_before: set[TopicPartition] = set()
        return await request_each(
            self._cluster, offsets, request_chunk, chunk_size=MAX_MEASURED_PARTITIONS, should_retry=should_retry
        )

    async def _measure_at(
        self, node_id: int, partitions: list[TopicPartition], offsets: Mapping[TopicPartition, Sequence[int]]
    ) -> dict[TopicPartition, PartitionMeasurement | ClientError]:
        results: dict[TopicPartition, PartitionMeasurement | ClientError] = {}
        without_start: list[TopicPartition] = []
        for chunk in chunk_by_offsets(partitions, offsets):
            request = ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    ListOffsetsTopic(
                        name=topic, partitions=[offsets_entry(TopicPartition(topic, p), chunk) for p in numbers]
                    )
                    for topic, numbers in by_topic(chunk).items()
                ],
                timeout_ms=int(self._cluster.request_timeout_ms),
            )
            response = await self._cluster.call(node_id, request, ListOffsetsResponse)
            for topic in response.topics:
                for p in topic.partitions:
                    tp = TopicPartition(topic.name, p.partition_index)
                    if p.error_code:
                        results[tp] = BrokerError(p.error_code, str(tp))
                        continue
                    if p.start_offset < 0:
                        without_start.append(tp)
                    unread_ages = zip(chunk.get(tp, ()), p.unread_ages_ms, strict=False)
                    ages_ms = {offset: age_ms for offset, age_ms in unread_ages if age_ms >= 0}
                    results[tp] = p.start_offset, p.offset, ages_ms
        if without_start:
            await self._add_starts(node_id, without_start, results)
        return results

    async def _add_starts(
        self,
        node_id: int,
        partitions: list[TopicPartition],
        results: dict[TopicPartition, PartitionMeasurement | ClientError],
    ) -> None:
        """Add log start offsets for leaders that do not return them with end offsets."""
        starts: ListedOffsets
        starts, error = await list_offsets_at(self._cluster, node_id, dict.fromkeys(partitions, EARLIEST), 0)
        for tp in partitions:
            known = results[tp]
            assert not isinstance(known, ClientError), "its end is known"
            if tp in starts:
                results[tp] = starts[tp].offset, known[1], known[2]
            else:
                results[tp] = error or BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, str(tp))


def offsets_entry(tp: TopicPartition, offsets: Mapping[TopicPartition, Sequence[int]]) -> ListOffsetsPartition:
    """Return the request's entry for a partition."""
    return ListOffsetsPartition(
        partition_index=tp.partition, timestamp=LATEST, committed_offsets=list(offsets.get(tp, ()))
    )


def chunk_by_offsets(
    partitions: Iterable[TopicPartition], offsets: Mapping[TopicPartition, Sequence[int]]
) -> Iterable[dict[TopicPartition, Sequence[int]]]:
    """Yield partitions with their committed offsets, in chunks of at most MAX_OFFSETS_PER_REQUEST."""
    chunk: dict[TopicPartition, Sequence[int]] = {}
    count = 0
    for tp in partitions:
        values = offsets.get(tp, ())[:MAX_OFFSETS_PER_REQUEST]
        if chunk and count + len(values) > MAX_OFFSETS_PER_REQUEST:
            yield chunk
            chunk, count = {}, 0
        chunk[tp] = values
        count += len(values)
    if chunk:
        yield chunk


def group_lag_from(
    committed: Committed, measured: Mapping[TopicPartition, PartitionMeasurement | ClientError]
) -> GroupLag:
    """Return a group's lag from its committed offsets and the measurements."""
    partitions: dict[TopicPartition, PartitionLag] = {}
    errors: dict[TopicPartition, ClientError] = {}
    for tp, position in sorted(committed.items()):
        found = measured[tp]
        if not isinstance(found, ClientError):
            start, end, ages_ms = found
            partitions[tp] = PartitionLag(position, start, end, ages_ms.get(position.offset))
        elif not (isinstance(found, BrokerError) and found.code in UNKNOWN_TOPIC_ERRORS):
            errors[tp] = found
    return GroupLag(partitions, errors)


def positions(committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the committed offsets that are positions of consumers."""
    return {tp: offset for tp, offset in committed.items() if is_position(offset.metadata)}
