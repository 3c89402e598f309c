"""Input and actions of `reconcile.topic`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from penstock_operator.model.common import DeletionPolicy
from penstock_operator.model.topic import Topic
from penstock_operator.ports.brokers import (
    BrokersError,
    ObservedBrokerState,
    ObservedReader,
    ObservedTopicState,
    TopicCreation,
)
from penstock_operator.ports.kube import KubeEvent


@dataclass(frozen=True, slots=True)
class OwnerAbsence:
    """What is known about the missing owner of a topic."""

    was_deleted: bool = False
    """Whether its DELETED event was received."""
    policy: DeletionPolicy | None = None
    """Final policy in the DELETED event; None: the policy stored with the topic applies."""
    lists_without: int = 0
    """Number of consecutive complete lists without its UID."""
    same_name: bool = False
    """Whether it had the name of the current object."""
    may_delete: bool | None = None
    """Whether the topic may be deleted. False: the namespace or the CRD is being deleted. None: not checked yet."""


@dataclass(frozen=True, slots=True)
class ObservedTopic:
    """Observed state of a topic and its cluster."""

    name: str
    topic: ObservedTopicState | None
    """None: the topic does not exist."""
    brokers: tuple[ObservedBrokerState, ...] = ()
    rivals: tuple[Topic, ...] = ()
    """Other objects for the same topic of the same cluster."""
    has_owner: bool = False
    """Whether the owner of the topic exists and specifies it."""
    absence: OwnerAbsence | None = None
    """What is known about the owner if it is missing."""
    unreachable: str | None = None
    """Why the brokers could not be queried; `topic` is invalid then."""
    is_hibernated: bool = False
    """Whether the brokers are `unreachable` because the cluster is hibernated."""
    has_cluster: bool = True
    loads: Mapping[int, int] = field(default_factory=dict)
    """Number of replicas by broker, over all topics."""
    room: int = 1_000_000
    """Number of additional partitions that may start to move."""
    may_move: bool = True
    """Whether the Cluster allows automatic moves."""
    readers: tuple[ObservedReader, ...] | None = None
    """Groups that a draining topic waits for; None: unknown."""
    failure: BrokersError | None = None
    """Error of the last action."""


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic."""

    topic: TopicCreation
    event: KubeEvent


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Increase the number of partitions to `partitions`."""

    partitions: int
    event: KubeEvent


@dataclass(frozen=True, slots=True)
class DecreasePartitions:
    """Decrease the number of partitions to `partitions`."""

    partitions: int
    event: KubeEvent


@dataclass(frozen=True, slots=True)
class AlterTopicConfig:
    """Change settings; None resets one to its default."""

    settings: Mapping[str, str | None]
    event: KubeEvent | None


@dataclass(frozen=True, slots=True)
class ReassignTopic:
    """Reassign partitions: replicas by partition, the preferred leader first."""

    targets: Mapping[int, tuple[int, ...]]
    event: KubeEvent


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Delete the topic with this id."""

    topic_id: UUID
    event: KubeEvent


TopicAction = CreateTopic | AddPartitions | DecreasePartitions | AlterTopicConfig | ReassignTopic | DeleteTopic
