"""What is asked of a cluster once and answered at once: topics, offsets, what a group has committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from penstock.client import BrokerError, ClientError, ErrorCode, TopicPartition
from penstock.client.cluster import Cluster
from penstock.client.errors import check
from penstock.client.metadata import Metadata, merge
from penstock.client.offsets import ask_leader
from penstock.client.types import TopicInfo
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock_spark.link.ports import Topic

MISSING = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
NONE: Mapping[str, Topic] = MappingProxyType({})


async def topics(cluster: Cluster, names: Iterable[str] | None, known: Mapping[str, Topic] = NONE) -> dict[str, Topic]:
    """The topics that exist, of those named or of all but internal ones. Raises `ClientError`.

    `known` is what the caller has seen of them before; see `contradicts`.
    """
    if names is not None:
        return {name: described(info) for name, info in (await look_up(cluster, names, known)).items()}
    found = (await cluster.all_metadata()).topics
    doubtful = {name for name, topic in known.items() if contradicts(found.get(name), topic)}
    found = {name: info for name, info in found.items() if name not in doubtful} | await look_up(
        cluster, doubtful, known
    )
    return {name: described(info) for name, info in found.items() if not info.is_internal}


def described(info: TopicInfo) -> Topic:
    return Topic(info.name, info.topic_id if info.topic_id.int else None, len(info.partitions))


async def look_up(cluster: Cluster, names: Iterable[str], known: Mapping[str, Topic] = NONE) -> dict[str, TopicInfo]:
    """Brings what the cluster client knows of these topics up to date, and returns those that exist.

    A broker that has just come back, or was cut off for a while, may not have heard of a topic yet, or of its new
    partitions, or that another one has its name now. So one that is said to be missing, or that contradicts what is
    `known`, is asked for at the controller too. Raises `ClientError`.
    """
    wanted = set(names)
    if not wanted:
        return {}
    await cluster.look_up(wanted)
    doubtful = {name for name in wanted if is_doubtful(cluster.metadata, name, known)}
    if doubtful:
        await look_up_at_controller(cluster, doubtful)
    found = {}
    for name in wanted:
        error = cluster.metadata.errors.get(name)
        info = cluster.metadata.topics.get(name)
        if error is None and info is not None:
            found[name] = info
        elif error not in MISSING:
            raise BrokerError(error or ErrorCode.UNKNOWN_SERVER_ERROR, f"topic {name!r}")
    return found


def is_doubtful(metadata: Metadata, name: str, known: Mapping[str, Topic]) -> bool:
    """Whether an answer about a topic is to be asked for again, at the controller."""
    if metadata.errors.get(name) in MISSING:
        return True
    return name in known and contradicts(metadata.topics.get(name), known[name])


def contradicts(found: TopicInfo | None, known: Topic) -> bool:
    """Whether a topic lacks, or has lost partitions, or is another one than was known: what is lost is loss of data to
    those above, and a broker whose view lags says all of that of a topic that is whole."""
    if found is None or len(found.partitions) < known.partitions:
        return True
    return known.topic_id is not None and found.topic_id.int != 0 and found.topic_id != known.topic_id


async def look_up_at_controller(cluster: Cluster, names: Iterable[str]) -> None:
    asked = sorted(names)
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in asked], allow_auto_topic_creation=False
    )
    answer = await cluster.call_controller(request, MetadataResponse)
    check(answer.error_code, "metadata")
    cluster.metadata = merge(cluster.metadata, answer, asked)


class OffsetQuery:
    """Asks the leaders where partitions begin, end, or pass a time; `ask` again goes on with what is left."""

    def __init__(self, cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation: int) -> None:
        self.cluster, self.isolation = cluster, isolation
        self.found: dict[TopicPartition, int] = {}
        self._left = dict(wanted)
        self._is_repeated = False

    async def ask(self) -> dict[TopicPartition, int]:
        """Offsets by partition; those that do not exist are left out. Raises `ClientError`, the last that came."""
        known = self.cluster.metadata
        stale = {tp.topic for tp in self._left if self._is_repeated or known.leader(*tp) < 0}
        self._is_repeated = True
        await look_up(self.cluster, stale, self._known_of(stale))
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

    def _known_of(self, names: Iterable[str]) -> dict[str, Topic]:
        """Who asks for a partition has seen it: the topics, with as many partitions as that takes."""
        counts = dict.fromkeys(names, 0)
        for tp in self._left:
            if tp.topic in counts:
                counts[tp.topic] = max(counts[tp.topic], tp.partition + 1)
        return {name: Topic(name, None, count) for name, count in counts.items()}

    def _take(self, answered: Iterable[tuple[TopicPartition, tuple[int, int, int]]]) -> None:
        for tp, place in answered:
            self.found[tp] = place[0]
            self._left.pop(tp, None)


def exists(metadata: Metadata, tp: TopicPartition) -> bool:
    info = metadata.topics.get(tp.topic)
    return info is not None and tp.partition in info.partitions
