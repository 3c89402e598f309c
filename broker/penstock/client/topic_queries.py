"""Queries for topics and offsets that do not trust a single broker whose metadata may be stale.

Public, for callers that decide about lost data; `range_fetch` uses them too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from penstock.client.broker_answers import (
    MISSING,
    contradicts,
    errors_in,
    known_or_any,
    metadata_request,
    query_all_brokers,
    topics_in,
)
from penstock.client.cluster import ClusterConnections
from penstock.client.errors import BrokerError, ClientError, check
from penstock.client.metadata import MetadataCache, merge_metadata
from penstock.client.offsets import list_offsets_at
from penstock.client.types import TopicInfo, TopicPartition, TopicPartitions
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.metadata import MetadataResponse

NO_TOPICS: Mapping[str, TopicPartitions] = MappingProxyType({})


async def list_topics(
    cluster: ClusterConnections,
    names: Iterable[str] | None,
    known: Mapping[str, TopicPartitions] = NO_TOPICS,
    *,
    confirmed: bool = False,
) -> dict[str, TopicPartitions]:
    """Return the existing topics among `names`, or all but internal ones. Raises `ClientError`.

    `known` are topics as the caller has seen them; for `confirmed` see `resolve_doubtful`.
    """
    if names is not None:
        existing = await query_topics(cluster, names, known, confirmed=confirmed)
        return {name: to_topic_partitions(info) for name, info in existing.items()}
    answer = await query_any(cluster, None)
    found = {name: info for name, info in topics_in(answer).items() if info is not None and name not in known}
    doubtful = merge_answer(cluster, answer, set(known), known)
    found |= await resolve_doubtful(cluster, set(known), doubtful, known, confirmed=confirmed)
    return {name: to_topic_partitions(info) for name, info in found.items() if not info.is_internal}


def to_topic_partitions(info: TopicInfo) -> TopicPartitions:
    """Convert the client's type."""
    return TopicPartitions(info.name, info.topic_id if info.topic_id.int else None, len(info.partitions))


async def query_topics(
    cluster: ClusterConnections,
    names: Iterable[str],
    known: Mapping[str, TopicPartitions] = NO_TOPICS,
    *,
    all_brokers: bool = False,
    confirmed: bool = False,
) -> dict[str, TopicInfo]:
    """Refresh the client's metadata of topics, and return the existing ones. Raises `ClientError`.

    A broker that has just restarted or was cut off may have stale metadata: without new topics or partitions, or with
    an earlier topic of the same name. So topics that it reports missing, or that contradict what is `known`, are
    queried from all brokers; with `all_brokers` all topics are.
    """
    wanted = set(names)
    if not wanted:
        return {}
    doubtful = wanted
    if not all_brokers and not confirmed:
        doubtful = merge_answer(cluster, await query_any(cluster, wanted), wanted, known)
    return await resolve_doubtful(cluster, wanted, doubtful, known, confirmed=confirmed)


async def resolve_doubtful(
    cluster: ClusterConnections,
    wanted: set[str],
    doubtful: set[str],
    known: Mapping[str, TopicPartitions],
    *,
    confirmed: bool,
) -> dict[str, TopicInfo]:
    """Query all brokers for the doubtful topics, and return the existing ones among `wanted`.

    With `confirmed` they are queried for all topics, and a majority must agree on the leader of each partition.
    """
    names = wanted if confirmed else doubtful
    answers = await query_all_brokers(cluster, names, known) if names else None
    found = existing_topics(cluster.metadata, wanted)
    if confirmed and answers is not None:
        partitions = [TopicPartition(name, p) for name in found for p in found[name].partitions]
        answers.require_confirmed_leaders(cluster.metadata, partitions)
    return found


async def query_any(cluster: ClusterConnections, names: Iterable[str] | None) -> MetadataResponse:
    """Query one broker for topics (None: all)."""
    answer = await cluster.call_any(metadata_request(names), MetadataResponse)
    check(answer.error_code, "metadata")
    return answer


def merge_answer(
    cluster: ClusterConnections, answer: MetadataResponse, names: set[str], known: Mapping[str, TopicPartitions]
) -> set[str]:
    """Merge a response into the client's metadata, except topics that contradict what is `known`; return those."""
    found, errors = topics_in(answer), errors_in(answer)
    doubtful = {n for n in names if n not in errors and contradicts(found.get(n), known_or_any(known, n))}
    sound = names - doubtful
    part = MetadataResponse(
        brokers=answer.brokers,
        cluster_id=answer.cluster_id,
        controller_id=answer.controller_id,
        topics=[topic for topic in answer.topics if topic.name in sound],
    )
    cluster.metadata = merge_metadata(cluster.metadata, part, sorted(sound))
    return doubtful


def existing_topics(metadata: MetadataCache, names: Iterable[str]) -> dict[str, TopicInfo]:
    """Return the existing topics among `names`. Raises `BrokerError` for other errors of a topic."""
    found = {}
    for name in names:
        error = metadata.errors.get(name)
        info = metadata.topics.get(name)
        if error is None and info is not None:
            found[name] = info
        elif error not in MISSING:
            raise BrokerError(error or ErrorCode.UNKNOWN_SERVER_ERROR, f'topic "{name}"')
    return found


class OffsetQuery:
    """Queries leaders for log starts, log ends, or offsets of times. A further `run` continues with what is left."""

    def __init__(self, cluster: ClusterConnections, wanted: Mapping[TopicPartition, int], isolation: int) -> None:
        self.cluster, self.isolation = cluster, isolation
        self.found: dict[TopicPartition, int] = {}
        self._left = dict(wanted)
        self._runs = 0

    async def run(self) -> dict[TopicPartition, int]:
        """Return offsets by partition, without partitions that do not exist. Raises the last `ClientError`."""
        known, earlier_runs = self.cluster.metadata, self._runs
        self._runs += 1
        stale = {tp.topic for tp in self._left if earlier_runs or known.leader(*tp) < 0}
        # If one broker's answer did not help, its metadata may be stale: ask all.
        await query_topics(self.cluster, stale, self._known_of(stale), all_brokers=earlier_runs > 1)
        error: ClientError | None = None
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for tp, what in list(self._left.items()):
            leader = self.cluster.metadata.leader(*tp)
            if leader >= 0:
                by_leader.setdefault(leader, {})[tp] = what
            elif exists(self.cluster.metadata, tp):
                error = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, str(tp))
            else:
                del self._left[tp]
        answers = await asyncio.gather(
            *(list_offsets_at(self.cluster, node, part, self.isolation) for node, part in by_leader.items()),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, ClientError):
                error = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                self._store(answer[0].items())
                error = answer[1] or error
        if error is not None:
            raise error
        return self.found

    def _known_of(self, names: Iterable[str]) -> dict[str, TopicPartitions]:
        """Return topics with at least the partitions that are left: the caller has seen these."""
        counts = dict.fromkeys(names, 0)
        for tp in self._left:
            if tp.topic in counts:
                counts[tp.topic] = max(counts[tp.topic], tp.partition + 1)
        return {name: TopicPartitions(name, None, count) for name, count in counts.items()}

    def _store(self, answered: Iterable[tuple[TopicPartition, tuple[int, int, int]]]) -> None:
        for tp, (offset, _, _) in answered:
            self.found[tp] = offset
            self._left.pop(tp, None)


def exists(metadata: MetadataCache, tp: TopicPartition) -> bool:
    """Return whether a partition exists in the client's metadata."""
    info = metadata.topics.get(tp.topic)
    return info is not None and tp.partition in info.partitions
