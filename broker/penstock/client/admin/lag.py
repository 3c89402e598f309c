"""The part of the admin client that tells how far groups are behind, in records and in time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock.client.admin.groups import Committed, GroupAdminClient
from penstock.client.admin.types import GroupLag, PartitionLag
from penstock.client.errors import BrokerError, ClientError
from penstock.client.group_protocol import by_topic
from penstock.client.many import all_or_raise, ask_each, of_nodes
from penstock.client.offsets import EARLIEST, LATEST, Found, ask_leader
from penstock.client.types import TopicPartition
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

MEASURED_TOGETHER = 1_000
"""Partitions that are asked about together, over all leaders."""
MAX_OFFSETS = 5_000
"""Committed offsets of one request; a broker looks at twice that."""
GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

Measured = tuple[int, int, dict[int, int]]
"""(start, end, age in ms by committed offset) of a partition; ages are missing where the broker does not know them."""


class LagAdminClient(GroupAdminClient):
    """Lags; `admin.Admin` is what applications use."""

    async def lag(self, groups: Iterable[str]) -> dict[str, GroupLag | ClientError]:
        """How far groups are behind, in every partition that they have committed; one request to each leader for many
        partitions of many groups. What was committed of topics that are gone is left out."""
        committed = await self.committed_many(groups)
        offsets: dict[TopicPartition, set[int]] = {}
        for of_group in committed.values():
            if not isinstance(of_group, ClientError):
                for tp, position in of_group.items():
                    offsets.setdefault(tp, set()).add(position.offset)
        measured = await self._measure({tp: sorted(those) for tp, those in offsets.items()})
        return {
            group: found if isinstance(found, ClientError) else lag_of(found, measured)
            for group, found in committed.items()
        }

    async def group_lag(self, group: str, topics: Iterable[str] = ()) -> dict[TopicPartition, PartitionLag]:
        """How far a group is behind, in what it committed and in all partitions of `topics`.

        Partitions of topics that are gone are left out.
        """
        committed = all_or_raise(await self.committed_many([group]))[group]
        known = (await self._cluster.all_metadata()).topics
        wanted = {tp for tp in committed if tp.topic in known and tp.partition in known[tp.topic].partitions}
        wanted |= {TopicPartition(t, p) for t in topics if t in known for p in known[t].partitions}
        offsets = {tp: [committed[tp].offset] if tp in committed else [] for tp in sorted(wanted)}
        found: dict[TopicPartition, PartitionLag] = {}
        for tp, (start, end, ages_ms) in all_or_raise(await self._measure(offsets)).items():
            position = committed.get(tp)
            found[tp] = PartitionLag(position, start, end, None if position is None else ages_ms.get(position.offset))
        return found

    async def _measure(
        self, offsets: Mapping[TopicPartition, Sequence[int]]
    ) -> dict[TopicPartition, Measured | ClientError]:
        async def ask(part: list[TopicPartition]) -> dict[TopicPartition, Measured | ClientError]:
            unknown = {tp.topic for tp in part if tp in asked_before or leader_of(tp) < 0}
            if unknown:
                await self._cluster.look_up(unknown)
            asked_before.update(part)
            answers: dict[TopicPartition, Measured | ClientError] = {}
            nodes: dict[int, list[TopicPartition]] = {}
            for tp in part:
                if leader_of(tp) >= 0:
                    nodes.setdefault(leader_of(tp), []).append(tp)
                elif self._cluster.metadata.partition_count(tp.topic) > tp.partition:
                    answers[tp] = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, str(tp))
                else:
                    answers[tp] = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, str(tp))
            answers |= await of_nodes(nodes, lambda node, those: self._measure_at(node, those, offsets))
            return answers

        def again(error: ClientError) -> bool:
            return error.retriable and not (isinstance(error, BrokerError) and error.code in GONE)

        def leader_of(tp: TopicPartition) -> int:
            return self._cluster.metadata.leader(tp.topic, tp.partition)

        asked_before: set[TopicPartition] = set()
        return await ask_each(self._cluster, offsets, ask, at_a_time=MEASURED_TOGETHER, again=again)

    async def _measure_at(
        self, node_id: int, partitions: list[TopicPartition], offsets: Mapping[TopicPartition, Sequence[int]]
    ) -> dict[TopicPartition, Measured | ClientError]:
        answers: dict[TopicPartition, Measured | ClientError] = {}
        without_start: list[TopicPartition] = []
        for part in parts_by_offsets(partitions, offsets):
            request = ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    ListOffsetsTopic(name=topic, partitions=[asked(TopicPartition(topic, p), part) for p in numbers])
                    for topic, numbers in by_topic(part).items()
                ],
                timeout_ms=int(self._cluster.request_timeout_ms),
            )
            answer = await self._cluster.call(node_id, request, ListOffsetsResponse)
            for topic in answer.topics:
                for p in topic.partitions:
                    tp = TopicPartition(topic.name, p.partition_index)
                    if p.error_code:
                        answers[tp] = BrokerError(p.error_code, str(tp))
                        continue
                    if p.start_offset < 0:
                        without_start.append(tp)
                    told = zip(part.get(tp, ()), p.unread_ages_ms, strict=False)
                    ages_ms = {offset: age_ms for offset, age_ms in told if age_ms >= 0}
                    answers[tp] = p.start_offset, p.offset, ages_ms
        if without_start:
            await self._add_starts(node_id, without_start, answers)
        return answers

    async def _add_starts(
        self, node_id: int, partitions: list[TopicPartition], answers: dict[TopicPartition, Measured | ClientError]
    ) -> None:
        """Of logs whose leader does not tell where they begin beside where they end."""
        starts: Found
        starts, error = await ask_leader(self._cluster, node_id, dict.fromkeys(partitions, EARLIEST), 0)
        for tp in partitions:
            known = answers[tp]
            assert not isinstance(known, ClientError), "its end is known"
            if tp in starts:
                answers[tp] = starts[tp].offset, known[1], known[2]
            else:
                answers[tp] = error or BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, str(tp))


def asked(tp: TopicPartition, offsets: Mapping[TopicPartition, Sequence[int]]) -> ListOffsetsPartition:
    return ListOffsetsPartition(
        partition_index=tp.partition, timestamp=LATEST, committed_offsets=list(offsets.get(tp, ()))
    )


def parts_by_offsets(
    partitions: Iterable[TopicPartition], offsets: Mapping[TopicPartition, Sequence[int]]
) -> Iterable[dict[TopicPartition, Sequence[int]]]:
    """Partitions with their offsets, no more of these together than one request may ask for."""
    part: dict[TopicPartition, Sequence[int]] = {}
    count = 0
    for tp in partitions:
        those = offsets.get(tp, ())[:MAX_OFFSETS]
        if part and count + len(those) > MAX_OFFSETS:
            yield part
            part, count = {}, 0
        part[tp] = those
        count += len(those)
    if part:
        yield part


def lag_of(committed: Committed, measured: Mapping[TopicPartition, Measured | ClientError]) -> GroupLag:
    partitions: dict[TopicPartition, PartitionLag] = {}
    errors: dict[TopicPartition, ClientError] = {}
    for tp, position in sorted(committed.items()):
        found = measured[tp]
        if not isinstance(found, ClientError):
            start, end, ages_ms = found
            partitions[tp] = PartitionLag(position, start, end, ages_ms.get(position.offset))
        elif not (isinstance(found, BrokerError) and found.code in GONE):
            errors[tp] = found
    return GroupLag(partitions, errors)
