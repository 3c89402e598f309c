"""What `reconcile.topic` is given and what it comes to: the picture of one topic, and the actions on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from penstock_operator.model.common import DeletionPolicy
from penstock_operator.model.topic import Topic
from penstock_operator.ports.brokers import BrokersError, ObservedBrokerState, ObservedTopicState, TopicCreation
from penstock_operator.ports.kube import KubeEvent


@dataclass(frozen=True, slots=True)
class TopicGoneReason:
    """What is known about the object that a topic belongs to, by the UID stored with it, and that is not there."""

    was_deleted: bool = False
    """Whether its DELETED event came."""
    policy: DeletionPolicy | None = None
    """Its own last word, where its DELETED event brought it; else what is stored with the topic counts."""
    lists_without: int = 0
    """Complete lists in a row that lacked its UID."""
    same_name: bool = False
    """Whether it had the name of the object that is looked at."""
    may_delete: bool | None = None
    """Whether objects can be created in its namespace. False: the namespace or the resource definition is going, and
    what is deleted with them is no wish of anybody's. None: not known yet."""


@dataclass(frozen=True, slots=True)
class ObservedTopic:
    """A topic as it is, and its surroundings."""

    name: str
    topic: ObservedTopicState | None
    """None: the brokers have none of that name."""
    brokers: tuple[ObservedBrokerState, ...] = ()
    rivals: tuple[Topic, ...] = ()
    """Other objects for the same topic of the same cluster."""
    owner_is_there: bool = False
    """Whether the object that the topic belongs to exists and wants it."""
    gone: TopicGoneReason | None = None
    """Of the owner, where it is not there."""
    trouble: str | None = None
    """Why the brokers could not be asked; `topic` means nothing then."""
    has_cluster: bool = True
    loads: Mapping[int, int] = field(default_factory=dict)
    """Replicas by broker, of all topics."""
    room: int = 1_000_000
    """How many more partitions may begin to move."""
    may_move: bool = True
    """Whether replicas may be moved without anybody's asking for it."""
    failure: BrokersError | None = None
    """What came of the last action, where it was refused."""


@dataclass(frozen=True, slots=True)
class CreateTopic:
    topic: TopicCreation
    happening: KubeEvent


@dataclass(frozen=True, slots=True)
class AddPartitions:
    partitions: int
    happening: KubeEvent


@dataclass(frozen=True, slots=True)
class AlterTopicConfig:
    """None takes a setting back to its default."""

    settings: Mapping[str, str | None]
    happening: KubeEvent | None


@dataclass(frozen=True, slots=True)
class ReassignTopic:
    """Replicas by partition, the preferred leader first."""

    targets: Mapping[int, tuple[int, ...]]
    happening: KubeEvent


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Only the topic of that id."""

    topic_id: UUID
    happening: KubeEvent


TopicAction = CreateTopic | AddPartitions | AlterTopicConfig | ReassignTopic | DeleteTopic
