"""What all brokers say of topics, where one alone is not to be believed. Used by `queries` and `fetching`.

A broker that is cut off from the others goes on saying what it knew then: that it leads what another leads by now, that
a topic is missing which was made since. Whoever has its connection would hear the same again and again. So in doubt
everybody is asked at once: the newest leader epoch counts (KIP-320), what contradicts what the caller has seen counts
only where nobody says otherwise, and a loss only where most of the brokers say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from penstock.client import BrokerError, ErrorCode, TopicPartition
from penstock.client.cluster import ClusterConnections, Place
from penstock.client.errors import error_code
from penstock.client.metadata import MetadataCache, topic_info
from penstock.client.types import Node, PartitionInfo, TopicInfo
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock_spark.link.ports import TopicPartitions

ANSWER_MS = 3_000
"""A broker that takes longer is left out: those that are up answer in milliseconds."""
MISSING = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

View = Mapping[str, TopicInfo | None]
"""What one broker says of topics; None: that there is none of the name. Those that it refuses to tell of are absent."""


def request_for(names: Iterable[str] | None) -> MetadataRequest:
    """None: all topics. Nothing is created by asking."""
    topics = None if names is None else [MetadataRequestTopic(name=name) for name in sorted(names)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def view_of(answer: MetadataResponse) -> dict[str, TopicInfo | None]:
    found: dict[str, TopicInfo | None] = {}
    for topic in answer.topics:
        if topic.error_code in MISSING:
            found[topic.name or ""] = None
        elif not topic.error_code:
            found[topic.name or ""] = topic_info(topic, None)
    return found


def refusals_of(answer: MetadataResponse) -> dict[str, ErrorCode]:
    return {t.name or "": error_code(t.error_code) for t in answer.topics if t.error_code not in (0, *MISSING)}


def contradicts(found: TopicInfo | None, known: TopicPartitions) -> bool:
    """Whether a topic lacks, or has lost partitions, or is another one than was known: what is lost is loss of data to
    those above, and a broker whose view lags says all of that of a topic that is whole."""
    if found is None or len(found.partitions) < known.partitions:
        return True
    return known.topic_id is not None and found.topic_id.int != 0 and found.topic_id != known.topic_id


def known_or_any(known: Mapping[str, TopicPartitions], name: str) -> TopicPartitions:
    """What the caller has seen of a topic. That one is missing which it has not seen may be wrong all the same."""
    return known.get(name) or TopicPartitions(name, None, 0)


@dataclass(frozen=True, slots=True)
class BrokerAnswers:
    """What everybody said, of those that answered."""

    brokers: Mapping[int, Node]
    """All that anybody named, at the address that most of them have for it."""
    views: Mapping[Place, View]

    def of_brokers(self) -> list[View]:
        """Without what came from an address alone: whoever serves it may be one of the others."""
        return [view for place, view in self.views.items() if isinstance(place, int)]

    def against(self, name: str, known: TopicPartitions) -> int:
        """How many brokers contradict what is known of a topic."""
        return sum(contradicts(view[name], known) for view in self.of_brokers() if name in view)

    def is_most(self, count: int) -> bool:
        return 2 * count > len(self.brokers)

    def insist(self, metadata: MetadataCache, places: Iterable[TopicPartition]) -> None:
        """Raises `BrokerError`, a retriable one, unless most of the brokers name the leaders that `metadata` has."""
        for place in places:
            wanted = leader_of(metadata.topics.get(place.topic), place)
            named = [leader_of(view.get(place.topic), place) for view in self.of_brokers()]
            count = 0 if wanted is None else named.count(wanted)
            if not self.is_most(count):
                raise BrokerError(
                    ErrorCode.LEADER_NOT_AVAILABLE,
                    str(place),
                    f"{count} of {len(self.brokers)} brokers confirm who leads it; most of them would have to",
                )


def leader_of(info: TopicInfo | None, place: TopicPartition) -> tuple[object, ...] | None:
    part = info.partitions.get(place.partition) if info is not None else None
    return None if info is None or part is None else (info.topic_id, part.leader, part.leader_epoch)


async def look_up_everywhere(
    cluster: ClusterConnections, names: Iterable[str], known: Mapping[str, TopicPartitions]
) -> BrokerAnswers:
    """Brings what the cluster client knows of these topics up to date with the newest that anybody says.

    Raises `ClientError` where nobody answers, and a retriable one where what contradicts what is `known` is said by all
    who answer, and these are not most of the brokers: the client then knows what it knew.
    """
    wanted = set(names)
    answers = await _ask(cluster, request_for(wanted))
    heard = BrokerAnswers(_named_by(answers.values()), {place: view_of(answer) for place, answer in answers.items()})
    refusals = {name: code for answer in answers.values() for name, code in refusals_of(answer).items()}
    topics, errors = dict(cluster.metadata.topics), dict(cluster.metadata.errors)
    doubt: BrokerError | None = None
    for name in sorted(wanted):
        views = [view[name] for view in heard.views.values() if name in view]
        if not views:
            errors[name] = refusals.get(name, ErrorCode.UNKNOWN_SERVER_ERROR)
            continue
        expected = known_or_any(known, name)
        info = newest(views, expected, topics.get(name))
        if contradicts(info, expected) and not heard.is_most(heard.against(name, expected)):
            said = f"{heard.against(name, expected)} of {len(heard.brokers)} brokers say that it or part of it is gone"
            doubt = BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}", said)
            continue
        errors.pop(name, None)
        if info is None:
            topics.pop(name, None)
            errors[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            topics[name] = info
    cluster.metadata = replace(cluster.metadata, brokers=dict(heard.brokers), topics=topics, errors=errors)
    if doubt is not None:
        raise doubt
    return heard


def newest(views: list[TopicInfo | None], known: TopicPartitions, before: TopicInfo | None) -> TopicInfo | None:
    """The topic that most describe, of the descriptions that do not contradict what is known if there are any; each
    partition as the one has it who has heard of its newest leader, `before` being one of them."""
    sound = [view for view in views if not contradicts(view, known)] or views
    ((topic_id, _),) = Counter(None if view is None else view.topic_id for view in sound).most_common(1)
    same = [view for view in sound if view is not None and view.topic_id == topic_id]
    if not same:
        return None
    partitions: dict[int, PartitionInfo] = {}
    for number in sorted({number for view in same for number in view.partitions}):
        told = [view.partitions[number] for view in same if number in view.partitions]
        if before is not None and before.topic_id == topic_id and number in before.partitions:
            told.append(before.partitions[number])
        partitions[number] = max(told, key=lambda part: part.leader_epoch)
    return replace(same[0], partitions=partitions)


async def _ask(cluster: ClusterConnections, request: MetadataRequest) -> dict[Place, MetadataResponse]:
    """Everybody, those included of whom only the answers tell."""
    answers = await cluster.call_everyone(request, MetadataResponse, ANSWER_MS)
    named = _named_by(answers.values())
    if not named.keys() <= cluster.metadata.brokers.keys():
        cluster.metadata = replace(cluster.metadata, brokers=named)
        answers |= await cluster.call_everyone(request, MetadataResponse, ANSWER_MS)
    sound = {place: answer for place, answer in answers.items() if not answer.error_code}
    if not sound:
        raise BrokerError(next(answer.error_code for answer in answers.values()), "metadata")
    return sound


def _named_by(answers: Iterable[MetadataResponse]) -> dict[int, Node]:
    counts = Counter(Node(b.node_id, b.host, b.port, b.rack) for answer in answers for b in answer.brokers)
    return {node.node_id: node for node, _ in reversed(counts.most_common())}
