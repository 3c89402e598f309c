"""Metadata of all brokers, for cases in which one broker's metadata may be stale. Called by `topic_queries` and
`range_fetch`.

A broker that is cut off from the others keeps returning old metadata: that it leads partitions whose leader has
changed, that a new topic does not exist. A client would get the same response again on each retry. So in doubt all
brokers are queried: the newest leader epoch wins (KIP-320), a contradiction of what the caller knows counts only if no
broker returns otherwise, and a loss counts only if most brokers report it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.client.cluster import BrokerRef, ClusterConnections
from penstock.client.errors import BrokerError, error_code
from penstock.client.metadata import MetadataCache, topic_info
from penstock.client.types import Node, PartitionInfo, TopicInfo, TopicPartition, TopicPartitions
from penstock.wire.errors import ErrorCode
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

RESPONSE_TIMEOUT_MS = 3_000
"""Slower brokers are left out: healthy ones respond in milliseconds."""
MISSING = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

View = Mapping[str, TopicInfo | None]
"""One broker's topics by name; None: the topic does not exist. Topics with other errors are absent."""


def metadata_request(names: Iterable[str] | None) -> MetadataRequest:
    """Return a request for topics (None: all) that creates none."""
    topics = None if names is None else [MetadataRequestTopic(name=name) for name in sorted(names)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def topics_in(answer: MetadataResponse) -> dict[str, TopicInfo | None]:
    """Return the topics of a response; None for ones that do not exist."""
    found: dict[str, TopicInfo | None] = {}
    for topic in answer.topics:
        if topic.error_code in MISSING:
            found[topic.name or ""] = None
        elif not topic.error_code:
            found[topic.name or ""] = topic_info(topic, None)
    return found


def errors_in(answer: MetadataResponse) -> dict[str, ErrorCode]:
    """Return the error of each topic in a response, without missing topics."""
    return {t.name or "": error_code(t.error_code) for t in answer.topics if t.error_code not in (0, *MISSING)}


def contradicts(found: TopicInfo | None, known: TopicPartitions) -> bool:
    """Return whether a topic is missing, has lost partitions or has another id than known. That would be data loss,
    but a broker with stale metadata reports it of intact topics too."""
    if found is None or len(found.partitions) < known.partitions:
        return True
    return known.topic_id is not None and found.topic_id.int != 0 and found.topic_id != known.topic_id


def known_or_any(known: Mapping[str, TopicPartitions], name: str) -> TopicPartitions:
    """Return the topic as the caller knows it. An unknown topic may be reported missing wrongly too."""
    return known.get(name) or TopicPartitions(name, None, 0)


@dataclass(frozen=True, slots=True)
class BrokerAnswers:
    """The responses of all brokers that answered."""

    brokers: Mapping[int, Node]
    """All brokers in any response, at the address that most responses have."""
    views: Mapping[BrokerRef, View]

    def broker_views(self) -> list[View]:
        """Return the views of known brokers, without those of bootstrap addresses, which may be the same brokers."""
        return [view for place, view in self.views.items() if isinstance(place, int)]

    def count_contradicting(self, name: str, known: TopicPartitions) -> int:
        """Return the number of brokers that contradict what is known of a topic."""
        return sum(contradicts(view[name], known) for view in self.broker_views() if name in view)

    def is_majority(self, count: int) -> bool:
        """Return whether `count` brokers are a majority."""
        return 2 * count > len(self.brokers)

    def require_confirmed_leaders(self, metadata: MetadataCache, partitions: Iterable[TopicPartition]) -> None:
        """Raise a retriable `BrokerError` unless most brokers name the leaders in `metadata`."""
        for place in partitions:
            expected = leader_of(metadata.topics.get(place.topic), place)
            named = [leader_of(view.get(place.topic), place) for view in self.broker_views()]
            count = 0 if expected is None else named.count(expected)
            if not self.is_majority(count):
                raise BrokerError(
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    str(place),
                    f"only {count} of {len(self.brokers)} brokers confirm the leader",
                )


def leader_of(info: TopicInfo | None, place: TopicPartition) -> tuple[object, ...] | None:
    """Return topic id, leader and leader epoch of a partition; None if unknown."""
    part = info.partitions.get(place.partition) if info is not None else None
    return None if info is None or part is None else (info.topic_id, part.leader, part.leader_epoch)


async def query_all_brokers(
    cluster: ClusterConnections, names: Iterable[str], known: Mapping[str, TopicPartitions]
) -> BrokerAnswers:
    """Update the client's metadata of topics with the newest of all brokers.

    Raises `ClientError` if no broker answers. Raises a retriable one, without an update, if all responses contradict
    what is `known`, but not from a majority of the brokers.
    """
    wanted = set(names)
    answers = await _query_all(cluster, metadata_request(wanted))
    answered = BrokerAnswers(
        _named_by(answers.values()), {place: topics_in(answer) for place, answer in answers.items()}
    )
    refusals = {name: code for answer in answers.values() for name, code in errors_in(answer).items()}
    topics, errors = dict(cluster.metadata.topics), dict(cluster.metadata.errors)
    doubt: BrokerError | None = None
    for name in sorted(wanted):
        views = [view[name] for view in answered.views.values() if name in view]
        if not views:
            errors[name] = refusals.get(name, ErrorCode.UNKNOWN_SERVER_ERROR)
            continue
        expected = known_or_any(known, name)
        info = merge_views(views, expected, topics.get(name))
        if contradicts(info, expected) and not answered.is_majority(answered.count_contradicting(name, expected)):
            count = answered.count_contradicting(name, expected)
            reason = f"only {count} of {len(answered.brokers)} brokers report that it, or a part of it, is gone"
            doubt = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'topic "{name}"', reason)
            continue
        errors.pop(name, None)
        if info is None:
            topics.pop(name, None)
            errors[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topics[name] = info
    cluster.metadata = replace(cluster.metadata, brokers=dict(answered.brokers), topics=topics, errors=errors)
    if doubt is not None:
        raise doubt
    return answered


def merge_views(views: list[TopicInfo | None], known: TopicPartitions, before: TopicInfo | None) -> TopicInfo | None:
    """Return the topic that most brokers describe, preferably among those that do not contradict what is known.

    Each partition is taken from the description with its newest leader epoch; `before` is one of them.
    """
    sound = [view for view in views if not contradicts(view, known)] or views
    ((topic_id, _),) = Counter(None if view is None else view.topic_id for view in sound).most_common(1)
    same = [view for view in sound if view is not None and view.topic_id == topic_id]
    if not same:
        return None
    partitions: dict[int, PartitionInfo] = {}
    for number in sorted({number for view in same for number in view.partitions}):
        candidates = [view.partitions[number] for view in same if number in view.partitions]
        if before is not None and before.topic_id == topic_id and number in before.partitions:
            candidates.append(before.partitions[number])
        partitions[number] = max(candidates, key=lambda part: part.leader_epoch)
    return replace(same[0], partitions=partitions)


async def _query_all(cluster: ClusterConnections, request: MetadataRequest) -> dict[BrokerRef, MetadataResponse]:
    """Query all brokers, including ones that only the responses name."""
    answers = await cluster.call_all(request, MetadataResponse, RESPONSE_TIMEOUT_MS)
    named = _named_by(answers.values())
    if not named.keys() <= cluster.metadata.brokers.keys():
        cluster.metadata = replace(cluster.metadata, brokers=named)
        answers |= await cluster.call_all(request, MetadataResponse, RESPONSE_TIMEOUT_MS)
    sound = {place: answer for place, answer in answers.items() if not answer.error_code}
    if not sound:
        raise BrokerError(next(answer.error_code for answer in answers.values()), "metadata")
    return sound


def _named_by(answers: Iterable[MetadataResponse]) -> dict[int, Node]:
    counts = Counter(Node(b.node_id, b.host, b.port, b.rack) for answer in answers for b in answer.brokers)
    return {node.node_id: node for node, _ in reversed(counts.most_common())}
