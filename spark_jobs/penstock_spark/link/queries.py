"""What is asked of a cluster once and answered at once: topics, offsets, what a group has committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from penstock.client import BrokerError, ClientError, ErrorCode, TopicPartition
from penstock.client.cluster import ClusterConnections
from penstock.client.errors import check
from penstock.client.metadata import MetadataCache, merge
from penstock.client.offsets import ask_leader
from penstock.client.types import TopicInfo
from penstock.wire.messages.metadata import MetadataResponse
from penstock_spark.link.broker_answers import (
    MISSING,
    contradicts,
    known_or_any,
    look_up_everywhere,
    refusals_of,
    request_for,
    view_of,
)
from penstock_spark.link.ports import TopicPartitions

NONE: Mapping[str, TopicPartitions] = MappingProxyType({})


async def topics(
    cluster: ClusterConnections,
    names: Iterable[str] | None,
    known: Mapping[str, TopicPartitions] = NONE,
    *,
    sure: bool = False,
) -> dict[str, TopicPartitions]:
    """The topics that exist, of those named or of all but internal ones. Raises `ClientError`.

    `known` is what the caller has seen of them before, `sure` as in `settle`.
    """
    if names is not None:
        return {name: described(info) for name, info in (await look_up(cluster, names, known, sure=sure)).items()}
    answer = await ask_any(cluster, None)
    found = {name: info for name, info in view_of(answer).items() if info is not None and name not in known}
    doubtful = take(cluster, answer, set(known), known)
    found |= await settle(cluster, set(known), doubtful, known, sure=sure)
    return {name: described(info) for name, info in found.items() if not info.is_internal}


def described(info: TopicInfo) -> TopicPartitions:
    return TopicPartitions(info.name, info.topic_id if info.topic_id.int else None, len(info.partitions))


async def look_up(
    cluster: ClusterConnections,
    names: Iterable[str],
    known: Mapping[str, TopicPartitions] = NONE,
    *,
    doubt: bool = False,
    sure: bool = False,
) -> dict[str, TopicInfo]:
    """Brings what the cluster client knows of these topics up to date, and returns those that exist.

    A broker that has just come back, or was cut off for a while, may not have heard of a topic yet, or of its new
    partitions, or that another one has its name now. So one that is said to be missing, or that contradicts what is
    `known`, is asked for at all others too; if there is `doubt`, all topics are. Raises `ClientError`.
    """
    wanted = set(names)
    if not wanted:
        return {}
    doubtful = wanted
    if not doubt and not sure:
        doubtful = take(cluster, await ask_any(cluster, wanted), wanted, known)
    return await settle(cluster, wanted, doubtful, known, sure=sure)


async def settle(
    cluster: ClusterConnections,
    wanted: set[str],
    doubtful: set[str],
    known: Mapping[str, TopicPartitions],
    *,
    sure: bool,
) -> dict[str, TopicInfo]:
    """Those of the wanted topics that exist, once all brokers were asked for the doubtful ones.

    If it is to be `sure`, they are asked for all topics, and most of them have to agree about who leads each partition.
    """
    asked = wanted if sure else doubtful
    heard = await look_up_everywhere(cluster, asked, known) if asked else None
    found = existing(cluster.metadata, wanted)
    if sure and heard is not None:
        heard.insist(cluster.metadata, [TopicPartition(name, p) for name in found for p in found[name].partitions])
    return found


async def ask_any(cluster: ClusterConnections, names: Iterable[str] | None) -> MetadataResponse:
    answer = await cluster.call_any(request_for(names), MetadataResponse)
    check(answer.error_code, "metadata")
    return answer


def take(
    cluster: ClusterConnections, answer: MetadataResponse, names: set[str], known: Mapping[str, TopicPartitions]
) -> set[str]:
    """Has the cluster client know what the answer says of these topics, but where it contradicts what is `known`;
    returns the topics of which it does."""
    said, refused = view_of(answer), refusals_of(answer)
    doubtful = {n for n in names if n not in refused and contradicts(said.get(n), known_or_any(known, n))}
    sound = names - doubtful
    part = MetadataResponse(
        brokers=answer.brokers,
        cluster_id=answer.cluster_id,
        controller_id=answer.controller_id,
        topics=[topic for topic in answer.topics if topic.name in sound],
    )
    cluster.metadata = merge(cluster.metadata, part, sorted(sound))
    return doubtful


def existing(metadata: MetadataCache, names: Iterable[str]) -> dict[str, TopicInfo]:
    """Raises `BrokerError` for one that a broker refuses to tell of."""
    found = {}
    for name in names:
        error = metadata.errors.get(name)
        info = metadata.topics.get(name)
        if error is None and info is not None:
            found[name] = info
        elif error not in MISSING:
            raise BrokerError(error or ErrorCode.UNKNOWN_SERVER_ERROR, f"topic {name!r}")
    return found


class OffsetQuery:
    """Asks the leaders where partitions begin, end, or pass a time; `ask` again goes on with what is left."""

    def __init__(self, cluster: ClusterConnections, wanted: Mapping[TopicPartition, int], isolation: int) -> None:
        self.cluster, self.isolation = cluster, isolation
        self.found: dict[TopicPartition, int] = {}
        self._left = dict(wanted)
        self._asks = 0

    async def ask(self) -> dict[TopicPartition, int]:
        """Offsets by partition; those that do not exist are left out. Raises `ClientError`, the last that came."""
        known, asked_before = self.cluster.metadata, self._asks
        self._asks += 1
        stale = {tp.topic for tp in self._left if asked_before or known.leader(*tp) < 0}
        # One broker was asked who leads, and that did not help: it may not know.
        await look_up(self.cluster, stale, self._known_of(stale), doubt=asked_before > 1)
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
            *(ask_leader(self.cluster, node, part, self.isolation) for node, part in by_leader.items()),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, ClientError):
                error = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                self._take(answer[0].items())
                error = answer[1] or error
        if error is not None:
            raise error
        return self.found

    def _known_of(self, names: Iterable[str]) -> dict[str, TopicPartitions]:
        """Who asks for a partition has seen it: the topics, with as many partitions as that takes."""
        counts = dict.fromkeys(names, 0)
        for tp in self._left:
            if tp.topic in counts:
                counts[tp.topic] = max(counts[tp.topic], tp.partition + 1)
        return {name: TopicPartitions(name, None, count) for name, count in counts.items()}

    def _take(self, answered: Iterable[tuple[TopicPartition, tuple[int, int, int]]]) -> None:
        for tp, place in answered:
            self.found[tp] = place[0]
            self._left.pop(tp, None)


def exists(metadata: MetadataCache, tp: TopicPartition) -> bool:
    info = metadata.topics.get(tp.topic)
    return info is not None and tp.partition in info.partitions
